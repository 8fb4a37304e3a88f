"""Waits for rank 0 of a launch to call: listens where it can reach us, and believes only who knows the token."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

from ncclt.errors import UsageError, reason
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_channel import Channel, ChannelError

PROOF_S = 10.0
"""How long somebody who calls may take to prove himself."""

MOST_CALLERS = 16
"""Who are listened to at once before they have proven anything."""

THIS_MACHINE = ("local", "torchrun")
"""Launchers whose ranks are on this machine, so that nobody else needs to reach us."""

_TICK_S = 0.05


class Controller:
    """Listens for the rank 0 of one launch.

    Args:
        launcher: word of the launcher: for those of this machine the loopback interface is enough.
        host: name or address by which rank 0 reaches this machine; empty = its own name, or loopback.
        token: of the launch.

    Raises:
        UsageError: this machine has no such address.
    """

    def __init__(self, *, launcher: str, host: str, token: bytes) -> None:
        self._host = host or ("127.0.0.1" if launcher in THIS_MACHINE else socket.gethostname())
        self._token = token
        self._proven: queue.Queue[Channel] = queue.Queue()
        self._listening = threading.BoundedSemaphore(MOST_CALLERS)
        try:
            self._socket = _listen(self._host, everywhere=not host and launcher not in THIS_MACHINE)
        except OSError as error:
            raise UsageError(
                f"this machine cannot be reached as {self._host}: {reason(error)}",
                hint="name the address that the nodes reach it by in NCCLT_CONTROLLER_HOST",
            ) from error

    @property
    def address(self) -> str:
        """Return `host:port` as rank 0 is told it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._socket.getsockname()[1]}"

    def accept(self, within_s: float, *, stopped: Callable[[], bool]) -> Channel | None:
        """Return the line to rank 0; None = it has not called in time, or `stopped` is true."""
        deadline_s = time.monotonic() + within_s
        self._socket.settimeout(_TICK_S)
        while time.monotonic() < deadline_s and not stopped():
            with contextlib.suppress(queue.Empty):
                return self._proven.get_nowait()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            # Whoever finds all of them taken is turned away: rank 0 calls once, and nobody else has any business here.
            if self._listening.acquire(blocking=False):
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()
            else:
                connection.close()
        return None

    def close(self) -> None:
        """Listen no more; what has been accepted lives on."""
        self._socket.close()

    def __enter__(self) -> Controller:
        """Return it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _hear(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, self._token, controls=True)
            channel.prove(PROOF_S)
        except (ChannelError, OSError):
            connection.close()  # a stranger: there is nobody to tell
        else:
            self._proven.put(channel)
        finally:
            self._listening.release()


def _listen(host: str, *, everywhere: bool) -> socket.socket:
    """Listen on a free port: of all interfaces where only a name is known, for it may stand for several of them."""
    if everywhere:
        dual = socket.has_dualstack_ipv6()
        return socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server((address[0], 0), family=family)
