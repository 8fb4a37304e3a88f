"""Persistent ranks: one launch that lasts over many trials, the channel to its rank 0, and its end."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from ncclt.launch.launcher import Launcher, LaunchPlan, LaunchResult
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_channel import Channel, ChannelError, GoneError
from ncclt.measure.persistent.controller import THIS_MACHINE, Controller

POLITE_S = 10.0
"""How long ranks may take to end after they got the order to: they close their communicators."""

AFTERWARDS_S = 30.0
"""How long a launch may take to end by itself, with a reason, once its rank 0 has gone away."""

BEGIN_S = 30.0
"""How long all ranks may take to report ready for a trial."""

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
        plan: of the launch.
        controller: listens for its rank 0; closed here.
        stopped: returns whether everything is to end at once.
    """

    def __init__(
        self, *, launcher: Launcher, plan: LaunchPlan, controller: Controller, stopped: Callable[[], bool]
    ) -> None:
        self._launcher, self._plan, self._controller, self._stopped = launcher, plan, controller, stopped
        self._channel: Channel | None = None
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
        """Return whether trials can be sent; notices ranks that have died since the last message."""
        if self._channel is None or not self._thread.is_alive():
            return False
        try:
            said = self._channel.receive(0.0)
        except ChannelError:
            return False
        return said is None  # no answer is outstanding

    def wait_ready(self, begin: Mapping[str, Any], within_s: float) -> bool:
        """Wait until all ranks have met and rank 0 has connected; return whether they did."""
        deadline_s = time.monotonic() + within_s
        with closing(self._controller):
            self._channel = self._controller.accept(
                within_s, stopped=lambda: self._stopped() or not self._thread.is_alive()
            )
        self._check()
        if self._channel is None or not self._send({"do": "begin", **begin}):
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
            self._complaint = f"not all ranks said within {BEGIN_S:.0f} s that they are there"
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
        if self._channel is not None:
            self._channel.close()
        if self._launcher.name in THIS_MACHINE and _REPORTS.fullmatch(self._reports):
            shutil.rmtree(self._reports, ignore_errors=True)  # a rank 0 that was killed could not remove them
        if self._error is not None:
            raise self._error
        assert self._result is not None, "a launch that has ended has a result"
        result = self._result
        complaint = f"ncclt: {self._complaint}\n" if self._complaint else ""
        return replace(
            result,
            killed=result.killed and not ended_by_us,
            stdout=_of_this_trial(result.stdout),
            stderr=_of_this_trial(result.stderr) + complaint,
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
        if self._channel is None:
            return False
        try:
            self._channel.send(document)
        except ChannelError:
            return False
        return True

    def _receive(self, word: str, deadline_s: float) -> Mapping[str, Any] | None:
        """Return the next message of rank 0, which must be `word`; None = it has ended, is silent or sent another."""
        assert self._channel is not None, "rank 0 has connected"
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._check()
                said = self._channel.receive(min(_TICK_S, left_s))
                if said is None:
                    continue
                if not isinstance(said, dict) or said.get(word) != self._number:
                    raise ChannelError("something else than was asked")
                return said
        except GoneError:
            self._channel.close()
        except ChannelError as error:
            self._channel.close()
            self._complaint = f"what rank 0 said cannot be understood: {error}"
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


def _of_this_trial(text: str) -> str:
    """Remove what earlier trials printed: it would be taken as the reason why this one ended."""
    return _BEFORE.sub("", text)
