"""Runners that need no GPU: a simulated cluster, and a recorded landscape whose times are real and launches are not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from ncclt.core.algorithms import Protocol, ll128_is_automatic
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import DEFAULT, Setting, max_channels
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.measure.simulated.expected import expected_us
from ncclt.measure.simulated.landscape import Landscape
from ncclt.measure.simulated.noise import DETAIL, NO_FAULTS, Faults, build_noise
from ncclt.measure.simulated.transfer_time import MODELLED, find_choice
from ncclt.nccl.cost_model.topology import build_topology

_SAMPLES = 5
"""Samples per message and launch: enough for a median that ignores one outlier."""

_LAUNCH_S = 2.0
_TIMEOUT_S = 60.0
"""Cost of a launch and of a hang on a real cluster; reported without waiting."""


class SimulatedRunner:
    """Measures settings on a simulated cluster (see ncclt.core.trial.Runner)."""

    name: ClassVar[str] = "simulate"
    simulated: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, *, seed: int, sigma: float | None = None, faults: Faults = NO_FAULTS) -> None:
        self.cluster = cluster
        self._seed = seed
        self._noise = build_noise(cluster, seed=seed, sigma=sigma)
        self._faults = faults
        self._seen: dict[tuple[Setting, Message], tuple[float, int, str]] = {}
        self._digests: dict[Setting, str] = {}

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once, in no time; `wall_s` is what the launch would have taken on a real cluster.

        Raises:
            UsageError: a message has a larger group than the cluster has GPUs.
        """
        digest = self._digests.get(setting)
        if digest is None:
            digest = self._digests[setting] = setting.digest()
        return self._launch({setting: messages}, digest, messages, repeat=repeat)

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return that a whole policy can be simulated."""
        return True

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under what the policy forces on each message; raises as `measure` does."""
        return self._launch(policy.by_setting(messages), policy.digest(), messages, repeat=repeat)

    def _launch(
        self, parts: Mapping[Setting, Sequence[Message]], digest: str, messages: Sequence[Message], *, repeat: int
    ) -> TrialResult:
        found = {message: self._known(setting, message) for setting, part in parts.items() for message in part}
        plan = [(message, found[message]) for message in messages]
        for _, (_, _, refusal) in plan:
            if refusal:
                return TrialResult(outcome=Outcome.INVALID, detail=refusal)
        faults = (self._faults.outcome(setting, seed=self._seed, repeat=repeat) for setting in parts)
        fault = next((one for one in faults if one is not Outcome.OK), Outcome.OK)
        if fault in (Outcome.CRASHED, Outcome.TIMEOUT):
            wall_s = _TIMEOUT_S if fault is Outcome.TIMEOUT else _LAUNCH_S
            return TrialResult(outcome=fault, detail=DETAIL[fault], wall_s=wall_s)
        draw = self._noise.samples_us
        measurements = tuple(
            Measurement(
                message=message,
                samples_us=draw(time_us, digest, message, repeat=repeat, count=_SAMPLES),
                wrong=1024 if fault is Outcome.WRONG_RESULT else wrong,
            )
            for message, (time_us, wrong, _) in plan
        )
        wall_s = _LAUNCH_S + sum(sum(m.samples_us) for m in measurements) / 1e6
        if any(m.wrong for m in measurements):
            detail = DETAIL[Outcome.WRONG_RESULT]
            return TrialResult(outcome=Outcome.WRONG_RESULT, measurements=measurements, detail=detail, wall_s=wall_s)
        return TrialResult(outcome=Outcome.OK, measurements=measurements, wall_s=wall_s)

    def expected_us(self, setting: Setting, message: Message) -> float:
        """Return the time of one call without noise, µs: the truth that a search tries to find.

        Raises:
            UsageError: the group is larger than the cluster, or NCCL would refuse the setting for this message.
        """
        return self._known(setting, message)[0]

    def _known(self, setting: Setting, message: Message) -> tuple[float, int, str]:
        """Return a message's time without noise, its wrong elements, and why it is refused; computed once."""
        known = self._seen.get((setting, message))
        if known is None:
            refusal = self.refusal(setting, message)
            time_us = expected_us(self.cluster, setting, message)
            wrong = 0
            if setting.applied_to(message.collective, version=self.cluster.version).protocol is Protocol.LL128:
                # It tears its lines wherever NCCL does not enable it itself.
                part = build_topology(self.cluster, message.group_size, message.spans_nodes).cluster
                wrong = 0 if ll128_is_automatic(part) else 16
            known = self._seen[setting, message] = time_us, wrong, refusal
        return known

    def refusal(self, setting: Setting, message: Message) -> str:
        """Return the reason against running or simulating a message under the setting; empty where there is none."""
        version = self.cluster.version
        if unknown := [f"NCCL_{name}" for name, _ in setting.parameters if name not in MODELLED]:
            return f"the simulator has no model of {', '.join(unknown)}"
        if setting.channels is not None and setting.channels > max_channels(version):
            return f"NCCL {version} has at most {max_channels(version)} channels, not {setting.channels}"
        buffsize = dict(setting.parameters).get("BUFFSIZE")
        if buffsize is not None and (buffsize % 4096 or not 65536 <= buffsize <= 67108864):
            return f"NCCL_BUFFSIZE={buffsize} is not a multiple of 4096 between 64 KiB and 64 MiB"
        if message.collective.is_tunable and find_choice(self.cluster, setting, message) is None:
            return (
                f"NCCL WARN Error : no algorithm/protocol available for function {message.collective} with "
                f"datatype {message.dtype}. {setting.label} was forced."
            )
        return ""


class ReplayRunner:
    """Looks measurements up in a landscape (see ncclt.core.trial.Runner)."""

    name: ClassVar[str] = "replay"

    def __init__(self, landscape: Landscape, *, seed: int, sigma: float = 0.0) -> None:
        """Replay a landscape; `sigma` adds seeded lognormal noise to the recorded samples.

        Launches differ by the recorded noise in any case. It is between runs, so all messages of a collective share
        the deviation of a launch, each to its own extent.
        """
        self._landscape = landscape
        self._seed = seed
        self._sigma = sigma
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
            measurements.append(
                Measurement(
                    message=message,
                    samples_us=self._noisy(samples, setting, digest, message, repeat),
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

    def _noisy(
        self, samples: tuple[float, ...], setting: Setting, digest: str, message: Message, repeat: int
    ) -> tuple[float, ...]:
        launch = f"{self._seed}|{digest}|{repeat}|{message.collective}"
        sigma = self._landscape.sigma(setting, message)
        factor = math.exp(sigma * random.Random(launch).gauss(0.0, 1.0)) if sigma else 1.0
        draw = random.Random(f"{launch}|{message.size_bytes}|{message.dtype}")
        return tuple(
            sample * factor * (draw.lognormvariate(0.0, self._sigma) if self._sigma else 1.0) for sample in samples
        )
