"""Waits for rank 0 of a launch to connect: listens where rank 0 can reach it, and accepts only who knows the token."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable

from ncclt.errors import UsageError, reason
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_channel import Channel, ChannelError

PROOF_S = 10.0
"""How long authenticating a connection may take."""

MOST_CALLERS = 16
"""Connections that are being authenticated at once."""

THIS_MACHINE = ("local", "torchrun")
"""Launchers whose ranks are on this machine, so that the loopback interface is enough."""

_TICK_S = 0.05


class Controller:
    """Listens for the rank 0 of one launch.

    Args:
        launcher: its word, see `THIS_MACHINE`.
        host: name or address by which rank 0 reaches this machine; empty = its own name, or loopback.
        token: of the launch.

    Raises:
        UsageError: this machine has no such address.
    """

    def __init__(self, *, launcher: str, host: str, token: bytes) -> None:
        self._host = host or ("127.0.0.1" if launcher in THIS_MACHINE else socket.gethostname())
        self._token = token
        self._proven: queue.Queue[Channel] = queue.Queue()
        self._authenticating = threading.BoundedSemaphore(MOST_CALLERS)
        try:
            self._socket = _listen(self._host, everywhere=not host and launcher not in THIS_MACHINE)
        except OSError as error:
            raise UsageError(
                f"this machine cannot be reached as {self._host}: {reason(error)}",
                hint="name the address that the nodes reach it by in NCCLT_CONTROLLER_HOST",
            ) from error

    @property
    def address(self) -> str:
        """Return `host:port` for rank 0."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._socket.getsockname()[1]}"

    def accept(self, within_s: float, *, stopped: Callable[[], bool]) -> Channel | None:
        """Return the channel to rank 0; None = it has not connected in time, or `stopped` is true."""
        deadline_s = time.monotonic() + within_s
        self._socket.settimeout(_TICK_S)
        while time.monotonic() < deadline_s and not stopped():
            with contextlib.suppress(queue.Empty):
                return self._proven.get_nowait()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            # Connections beyond the limit are closed: rank 0 connects once, and no other process should.
            if self._authenticating.acquire(blocking=False):
                threading.Thread(target=self._authenticate, args=(connection,), daemon=True).start()
            else:
                connection.close()
        return None

    def close(self) -> None:
        """Stop listening; accepted channels stay open."""
        self._socket.close()

    def _authenticate(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, self._token, controls=True)
            channel.prove(PROOF_S)
        except (ChannelError, OSError):
            connection.close()  # not rank 0
        else:
            self._proven.put(channel)
        finally:
            self._authenticating.release()


def _listen(host: str, *, everywhere: bool) -> socket.socket:
    """Listen on a free port; on all interfaces where only a name is known, because it may resolve to several."""
    if everywhere:
        dual = socket.has_dualstack_ipv6()
        return socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server((address[0], 0), family=family)
