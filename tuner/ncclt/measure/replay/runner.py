"""The runner of a recorded landscape: its times are real, its launches are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import ClassVar

from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.measure.replay.landscape import Landscape


class ReplayRunner:
    """Looks measurements up in a landscape (see ncclt.core.trial.Runner)."""

    name: ClassVar[str] = "replay"

    def __init__(self, landscape: Landscape, *, seed: int) -> None:
        """Replay a landscape; launches differ by the recorded noise, drawn from the seed.

        It is between runs, so all messages of a collective share the deviation of a launch, each to its own extent.
        """
        self._landscape = landscape
        self._seed = seed
        self.cluster = landscape.cluster
        self.simulated = landscape.simulated

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return that a whole policy can be replayed."""
        return True

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Return the recorded times of what the policy forces on each message."""
        return self._replay(policy.setting_for, messages, repeat, policy.digest())

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Return the recorded times; what was not recorded makes the trial invalid."""
        return self._replay(lambda _message: setting, messages, repeat, setting.digest())

    def _replay(
        self, setting_for: Callable[[Message], Setting], messages: Sequence[Message], repeat: int, digest: str
    ) -> TrialResult:
        measurements = []
        for message in messages:
            setting = setting_for(message)
            samples = self._landscape.time_samples(setting, message)
            if not samples:
                return TrialResult(outcome=Outcome.INVALID, detail=self._reason(setting, message))
            sigma = self._landscape.sigma(setting, message)
            launch = random.Random(f"{self._seed}|{digest}|{repeat}|{message.collective}")
            factor = math.exp(sigma * launch.gauss(0.0, 1.0)) if sigma else 1.0
            measurements.append(
                Measurement(
                    message=message,
                    samples_us=tuple(sample * factor for sample in samples),
                    wrong=None,
                    interpolated=not self._landscape.is_exact(setting, message),
                )
            )
        return TrialResult(outcome=Outcome.OK, measurements=tuple(measurements))

    def _reason(self, setting: Setting, message: Message) -> str:
        if not self._landscape.time_samples(DEFAULT, message):
            group = f" in a group of {message.group_size}" if message.group_size else ""
            return f"{message.label}{group} was not recorded on {self.cluster.name}"
        if self._landscape.recorded(setting, message) is None:
            return f"{setting.label} was not recorded for {message.collective} on {self.cluster.name}"
        return f"{setting.label} was not recorded at {message.size_bytes} bytes on {self.cluster.name}"
