"""Persistent ranks: one launch that lasts over many trials, the authenticated connection to its rank 0, and its end."""

from __future__ import annotations

import contextlib
import queue
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclt.errors import UsageError, reason
from ncclt.launch.launcher import Launcher, LaunchPlan, LaunchResult
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand
from ncclt.measure.benchmarks.torch_collectives import MEASURING, WORKER, TorchCollectives
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_connection import (
    ConnectionClosedError,
    RankConnection,
    RankConnectionError,
)

PROOF_S = 10.0
"""Max time to authenticate a connection."""

MOST_CALLERS = 16
"""Connections that are being authenticated at once."""

_ACCEPT_TICK_S = 0.05


class Controller:
    """Listens for the rank 0 of one launch.

    Args:
        is_local: all ranks are on this machine, so that the loopback interface is enough.
        host: name or address by which rank 0 reaches this machine; empty = its own name, or loopback.

    Raises:
        UsageError: this machine has no such address.
    """

    def __init__(self, *, is_local: bool, host: str, token: bytes) -> None:
        self._host = host or ("127.0.0.1" if is_local else socket.gethostname())
        self._token = token
        self._proven: queue.Queue[RankConnection] = queue.Queue()
        self._authenticating = threading.BoundedSemaphore(MOST_CALLERS)
        try:
            self._socket = _listen(self._host, everywhere=not host and not is_local)
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

    def accept(self, within_s: float, *, stopped: Callable[[], bool]) -> RankConnection | None:
        """Return the connection to rank 0; None = it has not connected in time, or `stopped` is true."""
        deadline_s = time.monotonic() + within_s
        self._socket.settimeout(_ACCEPT_TICK_S)
        while time.monotonic() < deadline_s and not stopped():
            with contextlib.suppress(queue.Empty):
                return self._proven.get_nowait()
            try:
                accepted, _ = self._socket.accept()
            except TimeoutError:
                continue
            # Connections beyond the limit are closed: rank 0 connects once, and no other process should.
            if self._authenticating.acquire(blocking=False):
                threading.Thread(target=self._authenticate, args=(accepted,), daemon=True).start()
            else:
                accepted.close()
        return None

    def close(self) -> None:
        """Stop listening; accepted connections are kept."""
        self._socket.close()

    def _authenticate(self, accepted: socket.socket) -> None:
        try:
            connection = RankConnection(accepted, self._token, controls=True)
            connection.prove(PROOF_S)
        except (RankConnectionError, OSError):
            accepted.close()  # not rank 0
        else:
            self._proven.put(connection)
        finally:
            self._authenticating.release()


def _listen(host: str, *, everywhere: bool) -> socket.socket:
    """Listen on a free port; on all interfaces where only a name is known, because it may resolve to several."""
    if everywhere:
        dual = socket.has_dualstack_ipv6()
        return socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server((address[0], 0), family=family)


POLITE_S = 10.0
"""Max wait for ranks to end after the order: they close their communicators."""

AFTERWARDS_S = 30.0
"""Max wait for a launch to end by itself, with a reason, after its rank 0 has disconnected."""

BEGIN_S = 30.0
"""Max wait until all ranks report that they are ready for a trial."""

_TICK_S = 0.1

_REPORTS = re.compile(r"/dev/shm/ncclt-torch-[A-Za-z0-9_-]+")  # noqa: S108  as the worker names them

_BEFORE = re.compile(r"\A(?s:.*)NCCLT-TRIAL \d+\n")


class Session:
    """One launch of persistent ranks.

    It starts when it is made. Every wait raises KeyboardInterrupt as soon as `stopped` is true.

    Attributes:
        began_s: when it started, monotonic.
        ended_s: when nothing of it was left, monotonic; None = it still runs.

    Args:
        launcher: where; everything else that it runs is ended with this launch.
        controller: listens for its rank 0; closed here.
        stopped: returns whether everything is to end at once.
    """

    def __init__(
        self, *, launcher: Launcher, plan: LaunchPlan, controller: Controller, stopped: Callable[[], bool]
    ) -> None:
        self._launcher, self._plan, self._controller, self._stopped = launcher, plan, controller, stopped
        self._connection: RankConnection | None = None
        self._result: LaunchResult | None = None
        self._error: BaseException | None = None
        self._complaint = ""
        self._number = 0
        self.began_s = time.monotonic()
        self.ended_s: float | None = None
        self.environment: Mapping[str, Any] = {}
        self._reports = ""
        # The program does not wait for this daemon thread: the reaper of launches ends what it has started.
        self._thread = threading.Thread(target=self._launch, name="ncclt-session", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return True if trials can be sent; notices ranks that have died since the last message."""
        if self._connection is None or not self._thread.is_alive():
            return False
        try:
            reply = self._connection.receive(0.0)
        except RankConnectionError:
            return False
        return reply is None  # no answer is outstanding

    def wait_ready(self, begin: Mapping[str, Any], within_s: float) -> bool:
        """Wait until all ranks have met and rank 0 has connected; return whether they did."""
        deadline_s = time.monotonic() + within_s
        with closing(self._controller):
            self._connection = self._controller.accept(
                within_s, stopped=lambda: self._stopped() or not self._thread.is_alive()
            )
        self._check()
        if self._connection is None or not self._send({"do": "begin", **begin}):
            return False
        ready = self._receive("ready", deadline_s)
        if ready is None:
            return False
        self.environment, self._reports = ready["environment"], str(ready["reports"])
        return True

    def begin(self, order: Mapping[str, Any]) -> bool:
        """Send a trial; False = the ranks were lost before it began, so the trial is not to blame."""
        self._number += 1
        order = {"do": "trial", "number": self._number, "line": f"NCCLT-TRIAL {self._number}", **order}
        if not self._send(order):
            return False
        deadline_s = time.monotonic() + BEGIN_S
        begun = self._receive("begun", deadline_s) is not None
        if not begun and time.monotonic() >= deadline_s:
            self._complaint = f"not all ranks said within {BEGIN_S:.0f} s that they are ready"
        return begun

    def answer(self, deadline_s: float) -> Mapping[str, Any] | None:
        """Wait for the answer to a trial; None = it will not come, or not in time (then the launch still runs)."""
        return self._receive("done", deadline_s)

    def end(self) -> LaunchResult:
        """End the ranks, first by an order, and return how the launch ended."""
        if self._send({"do": "end", "reason": ""}):
            self._join(POLITE_S)
        return self.kill()

    def kill(self) -> LaunchResult:
        """End the ranks at once, if they have not ended, and return how the launch ended."""
        ended_by_us = self._thread.is_alive()
        while self._thread.is_alive():
            # Repeatedly: a launch that is only about to start cannot be ended yet.
            self._launcher.kill()
            self._thread.join(_TICK_S)
        self._controller.close()
        if self._connection is not None:
            self._connection.close()
        if self._launcher.shares_files and _REPORTS.fullmatch(self._reports):
            shutil.rmtree(self._reports, ignore_errors=True)  # a rank 0 that was killed could not remove them
        if self._error is not None:
            raise self._error
        assert self._result is not None, "a launch that has ended has a result"
        result = self._result
        complaint = f"ncclt: {self._complaint}\n" if self._complaint else ""
        return replace(
            result,
            killed=result.killed and not ended_by_us,
            # What earlier trials printed would be taken as the reason why this one ended.
            stdout=_BEFORE.sub("", result.stdout),
            stderr=_BEFORE.sub("", result.stderr) + complaint,
        )

    def wait_end(self) -> LaunchResult:
        """Wait for the end of a launch that has lost its rank 0, end it if it does not end, and return how it ended."""
        self._join(AFTERWARDS_S)
        return self.kill()

    def _launch(self) -> None:
        try:
            self._result = self._launcher.run(self._plan)
        except BaseException as error:  # noqa: BLE001  raised by `kill`
            self._error = error
        finally:
            self.ended_s = time.monotonic()

    def _send(self, document: Mapping[str, Any]) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.send(document)
        except RankConnectionError:
            return False
        return True

    def _receive(self, word: str, deadline_s: float) -> Mapping[str, Any] | None:
        """Return the next message of rank 0, which must be `word`; None = it has ended, is silent or sent another."""
        assert self._connection is not None, "rank 0 has connected"
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._check()
                reply = self._connection.receive(min(_TICK_S, left_s))
                if reply is None:
                    continue
                if not isinstance(reply, dict) or reply.get(word) != self._number:
                    raise RankConnectionError("an unexpected reply")
                return reply
        except ConnectionClosedError:
            self._connection.close()
        except RankConnectionError as error:
            self._connection.close()
            self._complaint = f"unreadable reply from rank 0: {error}"
        return None

    def _check(self) -> None:
        if self._stopped():
            raise KeyboardInterrupt

    def _join(self, within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while self._thread.is_alive() and time.monotonic() < deadline_s:
            if self._stopped():
                return
            self._thread.join(_TICK_S)


SESSION = WORKER.with_name("ncclt_torch_session.py")
CONNECTION = WORKER.with_name("ncclt_torch_connection.py")


def session_command(benchmark: TorchCollectives, *, controller: str, token: Path | None) -> BenchmarkCommand:
    """Return the command of persistent ranks.

    Args:
        benchmark: whose messages will be measured; defines the interpreter, the backend and the ranks' timeout.
        controller: `host:port` at which rank 0 reaches this process.
        token: file with the token of this launch, copied like the benchmark's own files; None = the command is only
            shown.
    """
    argv = (
        *(benchmark.python, str(WORKER), "--measuring", str(MEASURING), "--backend", benchmark.backend),
        *("--timeout-s", f"{benchmark.timeout_s:g}"),
        *("--controller", controller, *(("--token", str(token)) if token else ())),
        *("--session", str(SESSION), "--connection", str(CONNECTION)),
    )
    return BenchmarkCommand(
        argv=argv,
        messages=(),
        variables=(("OMP_NUM_THREADS", "1"),),
        files=(WORKER, MEASURING, SESSION, CONNECTION, *((token,) if token else ())),
    )


def nccl_version(environment: Mapping[str, object]) -> str:
    """Return NCCL's version as reported by the ranks when they met; empty without NCCL (gloo)."""
    equal = environment.get("equal")
    return str(equal.get("version of NCCL", "")) if isinstance(equal, Mapping) else ""
