"""Stand-ins for cluster and store: small, deterministic, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.study import Claim, Phase, Study, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult

TimeOf = Callable[[Setting, Message, int], float | Outcome]
"""(setting, message, launches of anything so far) -> time of a call in µs, or how the launch fails."""


class FakeRunner:
    """A runner whose times come from a function.

    Args:
        cluster: what it pretends to be.
        time_of: returns a time or a failure.
    """

    name: ClassVar[str] = "fake"
    simulated: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, time_of: TimeOf) -> None:
        self.cluster = cluster
        self._time_of = time_of
        self.launches: list[Setting] = []

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Return the function's times, or the first failure among them."""
        number = len(self.launches)
        self.launches.append(setting)
        return self._result([(setting, message) for message in messages], number, repeat)

    def _result(self, sent: Sequence[tuple[Setting, Message]], number: int, repeat: int) -> TrialResult:
        measurements = []
        for setting, message in sent:
            time = self._time_of(setting, message, number)
            if isinstance(time, Outcome):
                return TrialResult(outcome=time, detail=f"fake {time} in repeat {repeat}")
            measurements.append(Measurement(message=message, samples_us=(time,)))
        return TrialResult(outcome=Outcome.OK, measurements=tuple(measurements), wall_s=0.001)


class FakePolicyRunner(FakeRunner):
    """A runner that launches whole policies too, each message under its setting.

    Attributes:
        policies: those launched; `launches` holds single settings alone.
    """

    def __init__(self, cluster: Cluster, time_of: TimeOf) -> None:
        super().__init__(cluster, time_of)
        self.policies: list[Policy] = []

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return that one launch can apply it."""
        return True

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Return the function's times, or the first failure among them."""
        number = len(self.launches) + len(self.policies)
        self.policies.append(policy)
        return self._result([(policy.setting_for(message), message) for message in messages], number, repeat)


class FakeTrialLog:
    """Keeps trials in a list; `others` are claims as another worker would make them.

    Attributes:
        others: what other workers are launching.
    """

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        self._trials = list(trials)
        self.others: list[Claim] = []

    def trials(self) -> Sequence[Trial]:
        """Return all trials of the study."""
        return self._trials

    def refresh(self) -> Sequence[Claim]:
        """Return the claims of other workers."""
        return self.others

    def claim(self, setting: Setting, *, phase: Phase, most: int | None = None) -> Claim | None:
        """Reserve the next number."""
        if most is not None and sum(trial.phase is phase for trial in self._trials) + len(self.others) >= most:
            return None
        number = len(self._trials) + len(self.others)
        repeat = sum(trial.setting == setting for trial in self._trials)
        return Claim(number=number, setting=setting, repeat=repeat, phase=phase)

    def add(self, trial: Trial) -> Trial:
        """Keep one trial and return it."""
        self._trials.append(trial)
        return trial


class SilentWatcher:
    """A watcher of studies that shows nothing.

    Attributes:
        resumed: trials that were stored before the study was opened.
    """

    resumed = 0

    def opened(self, study: Study, resumed: int) -> None:  # noqa: ARG002
        """Keep the number of stored trials."""
        self.resumed = resumed

    def searched(self, progress: object) -> None:
        """Ignore a launch of the search."""

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        """Ignore a launch of the confirmation."""

    def proved(self, trial: Trial, blocks: int, pairs: object) -> None:
        """Ignore a launch of the proof."""
