"""Persistent ranks: one launch that lasts over many trials, the line to its rank 0, and its end."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ncclt.launch.launcher import Launcher, LaunchPlan, LaunchResult
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_channel import Channel, ChannelError, GoneError
from ncclt.measure.persistent.controller import THIS_MACHINE, Controller

POLITE_S = 10.0
"""How long ranks that were told to end may take: they close their communicators."""

AFTERWARDS_S = 30.0
"""How long a launch may take to end by itself once its rank 0 is gone, with a reason that can be read then."""

BEGIN_S = 30.0
"""How long all ranks may take to say that they are there for a trial."""

_TICK_S = 0.1

_REPORTS = re.compile(r"/dev/shm/ncclt-torch-[A-Za-z0-9_-]+")  # noqa: S108  as the worker names them

_BEFORE = re.compile(r"\A(?s:.*)NCCLT-TRIAL \d+\n")


class Session:
    """One launch of persistent ranks.

    It begins when it is made. Every wait raises KeyboardInterrupt as soon as `stopped` is true.

    Attributes:
        began_s: when it began, monotonic.
        ended_s: when nothing of it was left, monotonic; None = it still runs.

    Args:
        launcher: where; whatever else it runs is ended with this launch.
        plan: of the launch.
        controller: listens for its rank 0; closed here.
        stopped: whether everything shall end at once.
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
        # Nobody waits for this thread when the program ends: the guardian of launches ends what it has started.
        self._thread = threading.Thread(target=self._launch, name="ncclt-session", daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        """Tell whether trials can be sent; what has died since the last word is noticed."""
        if self._channel is None or not self._thread.is_alive():
            return False
        try:
            said = self._channel.receive(0.0)
        except ChannelError:
            return False
        return said is None  # nothing was asked, so nothing can be answered

    def wait_ready(self, begin: Mapping[str, Any], within_s: float) -> bool:
        """Wait until all ranks have met and rank 0 has called; False = it did not come to that."""
        deadline_s = time.monotonic() + within_s
        with self._controller:
            self._channel = self._controller.accept(
                within_s, stopped=lambda: self._stopped() or not self._thread.is_alive()
            )
        self._check()
        if self._channel is None or not self._say({"do": "begin", **begin}):
            return False
        ready = self._hear("ready", deadline_s)
        if ready is None:
            return False
        self.environment, self._reports = ready["environment"], str(ready["reports"])
        return True

    def begin(self, order: Mapping[str, Any]) -> bool:
        """Send a trial; False = the ranks were gone before any of it was done, so the trial is not to blame."""
        self._number += 1
        order = {"do": "trial", "number": self._number, "line": self._line(), **order}
        if not self._say(order):
            return False
        deadline_s = time.monotonic() + BEGIN_S
        begun = self._hear("begun", deadline_s) is not None
        if not begun and time.monotonic() >= deadline_s:
            self._complaint = f"not all ranks said within {BEGIN_S:.0f} s that they are there"
        return begun

    def answer(self, deadline_s: float) -> Mapping[str, Any] | None:
        """Wait for the answer to a trial; None = there will be none, or not in time (then the launch still runs)."""
        return self._hear("done", deadline_s)

    def end(self) -> LaunchResult:
        """End the ranks, with a word first, and return how the launch ended."""
        if self._say({"do": "end", "reason": ""}):
            self._join(POLITE_S)
        return self.kill()

    def kill(self) -> LaunchResult:
        """End the ranks at once, if they have not ended, and return how the launch ended."""
        ended_by_us = self._thread.is_alive()
        while self._thread.is_alive():
            # Again and again: a launch that is only about to begin is not there yet to be ended.
            self._launcher.kill()
            self._thread.join(_TICK_S)
        self._controller.close()
        if self._channel is not None:
            self._channel.close()
        if self._launcher.name in THIS_MACHINE and _REPORTS.fullmatch(self._reports):
            shutil.rmtree(self._reports, ignore_errors=True)  # a rank 0 that was killed could not remove them
        return self._ended(ended_by_us)

    def wait_end(self) -> LaunchResult:
        """Return how a launch ended whose rank 0 is gone: by itself, or else by force."""
        self._join(AFTERWARDS_S)
        return self.kill()

    def _launch(self) -> None:
        try:
            self._result = self._launcher.run(self._plan)
        except BaseException as error:  # noqa: BLE001  raised where somebody waits for it
            self._error = error
        finally:
            self.ended_s = time.monotonic()

    def _ended(self, ended_by_us: bool) -> LaunchResult:
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

    def _line(self) -> str:
        return f"NCCLT-TRIAL {self._number}"

    def _say(self, document: Mapping[str, Any]) -> bool:
        if self._channel is None:
            return False
        try:
            self._channel.send(document)
        except ChannelError:
            return False
        return True

    def _hear(self, word: str, deadline_s: float) -> Mapping[str, Any] | None:
        """Return the next thing that rank 0 says, which must be `word`; None = it is gone, silent or confused."""
        assert self._channel is not None, "nobody is heard before he has called"
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
    """Leave out what earlier trials have printed: it would be taken for what has ended this one."""
    return _BEFORE.sub("", text)
