"""The controller listens for one rank 0 among whoever else calls."""

import socket
import threading
from contextlib import closing

import pytest

from ncclt.errors import UsageError
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_connection import connect
from ncclt.measure.persistent import session as module
from ncclt.measure.persistent.session import Controller

TOKEN = b"a token"
PATIENCE_S = 60.0


def listening(host="", is_local=True):
    return closing(Controller(is_local=is_local, host=host, token=TOKEN))


def call(address, found):
    found.append(connect(address, TOKEN, within_s=PATIENCE_S))


def test_rank_0_is_heard_among_strangers():
    """Silent ones, loud ones, and more of them than are listened to."""
    with listening() as controller:
        host, port = controller.address.rsplit(":", 1)
        strangers = [socket.create_connection((host, int(port))) for _ in range(module.MOST_CALLERS - 1)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        found = []
        caller = threading.Thread(target=call, args=(controller.address, found))
        caller.start()
        connection = controller.accept(PATIENCE_S, stopped=lambda: False)
        caller.join()
        found[0].send({"here": 1})
        assert connection.receive(PATIENCE_S) == {"here": 1}
        for end in (*strangers, connection, found[0]):
            end.close()


def test_nobody_is_waited_for_longer_than_asked():
    with listening() as controller:
        assert controller.accept(0.1, stopped=lambda: False) is None
        assert controller.accept(PATIENCE_S, stopped=lambda: True) is None


def test_ranks_of_this_machine_need_no_open_port():
    with listening() as controller:
        assert controller.address.startswith("127.0.0.1:")
        assert controller._socket.getsockname()[0] == "127.0.0.1"


def test_ranks_elsewhere_are_told_our_name_or_what_we_are_told():
    with listening(is_local=False) as controller:
        assert controller.address.startswith(f"{socket.gethostname()}:")
    with listening("127.0.0.1", "slurm") as controller:
        assert controller._socket.getsockname()[0] == "127.0.0.1"


def test_an_address_of_somebody_else_is_refused_with_a_hint():
    with pytest.raises(UsageError) as caught:
        listening("192.0.2.1", "slurm")
    assert "NCCLT_CONTROLLER_HOST" in caught.value.hint
