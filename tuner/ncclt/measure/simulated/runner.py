"""The simulated cluster as a runner: its default is NCCL's own choice, its times are those of simulated hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ncclt.core.algorithms import Algorithm, Protocol, ll128_is_automatic
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting, max_channels
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.measure.simulated.chunks import BUFFER_BYTES
from ncclt.measure.simulated.faults import DETAIL, NO_FAULTS, Faults
from ncclt.measure.simulated.noise import noise_of
from ncclt.measure.simulated.physics import physics_of
from ncclt.measure.simulated.truth import SimulatedKernel, kernel_us
from ncclt.nccl.cost_model.graph import graph_of
from ncclt.nccl.cost_model.model import Choice, cell_channels, nccl_choice

_SAMPLES = 5
"""Samples per message and launch: enough for a median that ignores one outlier."""

_LAUNCH_S = 2.0
_TIMEOUT_S = 60.0
"""What a launch and a hang would cost on a real cluster; reported without waiting."""


class SimulatedRunner:
    """Measures settings on a simulated cluster (see ncclt.core.trial.Runner)."""

    name: ClassVar[str] = "simulate"
    simulated: ClassVar[bool] = True

    def __init__(self, cluster: Cluster, *, seed: int, sigma: float | None = None, faults: Faults = NO_FAULTS) -> None:
        self.cluster = cluster
        self._seed = seed
        self._noise = noise_of(cluster, seed=seed, sigma=sigma)
        self._faults = faults

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once, in no time; `wall_s` is what the launch would have taken on a real cluster.

        Raises:
            UsageError: a message has a larger group than the cluster has GPUs.
        """
        return self._launch({setting: messages}, setting.digest(), messages, repeat=repeat)

    def applies(self, policy: Policy) -> bool:  # noqa: ARG002
        """Return that a whole policy can be simulated."""
        return True

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under what the policy forces on each message; raises as `measure` does."""
        return self._launch(policy.by_setting(messages), policy.digest(), messages, repeat=repeat)

    def _launch(
        self, parts: Mapping[Setting, Sequence[Message]], digest: str, messages: Sequence[Message], *, repeat: int
    ) -> TrialResult:
        setting_of = {message: setting for setting, part in parts.items() for message in part}
        if refused := next(filter(None, (self._refusal(setting, part) for setting, part in parts.items())), ""):
            return TrialResult(outcome=Outcome.INVALID, detail=refused)
        faults = (self._faults.outcome(setting, seed=self._seed, repeat=repeat) for setting in parts)
        fault = next((found for found in faults if found is not Outcome.OK), Outcome.OK)
        if fault in (Outcome.CRASHED, Outcome.TIMEOUT):
            wall_s = _TIMEOUT_S if fault is Outcome.TIMEOUT else _LAUNCH_S
            return TrialResult(outcome=fault, detail=DETAIL[fault], wall_s=wall_s)
        measurements = tuple(
            Measurement(
                message=message,
                samples_us=self._noise.samples_us(
                    self.expected_us(setting_of[message], message), digest, message, repeat=repeat, count=_SAMPLES
                ),
                wrong=self._wrong(setting_of[message], message, fault),
            )
            for message in messages
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
        physics = physics_of(self.cluster, message.group_size, message.spans_nodes)
        buffsize = dict(setting.parameters).get("BUFFSIZE", BUFFER_BYTES[Protocol.SIMPLE])
        choice = self._choice(setting, message)
        kernel = SimulatedKernel(collective=message.collective, size_bytes=message.size_bytes, buffsize=buffsize)
        if choice is not None:
            kernel = replace(
                kernel,
                algorithm=choice.algorithm,
                protocol=choice.protocol,
                channels=self._channels(setting, message, choice),
                threads=choice.threads,
            )
        return kernel_us(kernel, physics)

    def _choice(self, setting: Setting, message: Message) -> Choice | None:
        """Return what runs: the forced choice if the setting applies to the collective, else NCCL's own."""
        reaching = setting.applied_to(message.collective, version=self.cluster.version)
        return nccl_choice(
            message.collective,
            message.size_bytes,
            self.cluster,
            message.group_size,
            message.spans_nodes,
            algorithm=reaching.algorithm,
            protocol=reaching.protocol,
            max_threads=dict(reaching.parameters).get("NTHREADS"),
        )

    def _channels(self, setting: Setting, message: Message, choice: Choice) -> int:
        if setting.channels is None:
            return choice.channels
        graph = graph_of(self.cluster, message.group_size, message.spans_nodes)
        nvls = choice.algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE)
        most = min(setting.channels, graph.nvls_channels if nvls else graph.channels)
        return cell_channels(message.collective, choice.protocol, message.size_bytes, graph.ranks, most)

    def _refusal(self, setting: Setting, messages: Sequence[Message]) -> str:
        """Return why NCCL would not run under the setting, empty where it would."""
        version = self.cluster.version
        if setting.channels is not None and setting.channels > max_channels(version):
            return f"NCCL {version} has at most {max_channels(version)} channels, not {setting.channels}"
        buffsize = dict(setting.parameters).get("BUFFSIZE")
        if buffsize is not None and (buffsize % 4096 or not 65536 <= buffsize <= 67108864):
            return f"NCCL_BUFFSIZE={buffsize} is not a multiple of 4096 between 64 KiB and 64 MiB"
        for message in messages:
            if message.collective.is_tunable and self._choice(setting, message) is None:
                return (
                    f"NCCL WARN Error : no algorithm/protocol available for function {message.collective} with "
                    f"datatype {message.dtype}. {setting.label} was forced."
                )
        return ""

    def _wrong(self, setting: Setting, message: Message, fault: Outcome) -> int:
        """Return the number of wrong elements: LL128 tears its lines wherever NCCL does not enable it itself."""
        if fault is Outcome.WRONG_RESULT:
            return 1024
        reaching = setting.applied_to(message.collective, version=self.cluster.version)
        if reaching.protocol is not Protocol.LL128:
            return 0
        part = graph_of(self.cluster, message.group_size, message.spans_nodes).cluster
        return 0 if ll128_is_automatic(part) else 16
