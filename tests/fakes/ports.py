"""A port for a server that a test starts as a process, and that must be told one."""

import socket


def free_port():
    """Return a port of the loopback interface that the system gives to nobody who does not name it, for a minute.

    A connection to it has just been closed from its side (TIME_WAIT): Linux chooses such a port neither for a client
    nor for `bind` to port 0, while a server with SO_REUSEADDR, as they all are, may listen there.
    """
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()
        return listening.getsockname()[1]
