"""Sweep of one collective over a simulated cluster: times by size, nodes and setting, without noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.gpus import find_gpu
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import SettingError, UsageError
from ncclt.measure.simulated.expected import running_kernel
from ncclt.measure.simulated.runner import SimulatedRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One simulated call.

    Attributes:
        nodes: of the job.
        setting: what was forced.
        message: what was sent.
        time_us: of one call.
        algorithm, protocol, channels: what ran; None for send_recv and all_to_all, which have no choice.
        extrapolated: `size`, `nodes` or both, where the calibration does not reach that far; empty where it does.
    """

    nodes: int
    setting: Setting
    message: Message
    time_us: float
    algorithm: Algorithm | None
    protocol: Protocol | None
    channels: int | None
    extrapolated: str

    @property
    def busbw_gbps(self) -> float:
        """Return the bus bandwidth, 1e9 bytes/s."""
        return self.message.busbw_gbps(self.time_us)


def sweep(
    cluster: Cluster, collective: Collective, sizes: Sequence[int], nodes: Sequence[int], settings: Sequence[Setting]
) -> Iterator[SweepRow]:
    """Yield the times of every size under every setting on every number of nodes.

    Raises:
        UsageError: NCCL would refuse a setting, or the cluster has no network for several nodes.
    """
    for count in nodes:
        part = cluster.sized(nodes=count)
        runner = SimulatedRunner(part, seed=0, sigma=0.0)
        for setting in settings:
            for size in sizes:
                message = Message(
                    collective=collective,
                    dtype="float32",
                    size_bytes=size,
                    group_size=part.world_size,
                    spans_nodes=count > 1,
                )
                if refusal := runner.refusal(setting, message):
                    raise UsageError(refusal, hint="choose another --setting")
                kernel = running_kernel(part, setting, message) if collective.is_tunable else None
                yield SweepRow(
                    nodes=count,
                    setting=setting,
                    message=message,
                    time_us=runner.expected_us(setting, message),
                    algorithm=kernel.algorithm if kernel else None,
                    protocol=kernel.protocol if kernel else None,
                    channels=kernel.channels if kernel else None,
                    extrapolated=part.calibration.beyond(size, count) if part.calibration else "",
                )


def parse_setting(text: str) -> Setting:
    """Read a setting as ncclt prints it: `ring/ll128 c=8 BUFFSIZE=8388608`, `ring`, or `default`.

    Raises:
        UsageError: it is not a setting.
    """
    hint = "for example --setting ring/ll128, --setting 'tree/simple c=8', or --setting default"
    words = text.split()
    if words == ["default"]:
        return DEFAULT
    found = Setting()
    try:
        for word in words:
            name, sign, value = word.partition("=")
            if not sign:
                algorithm, _, protocol = word.lower().partition("/")
                found = replace(
                    found,
                    algorithm=None if algorithm == "auto" else Algorithm(algorithm),
                    protocol=Protocol(protocol) if protocol not in ("", "auto") else None,
                )
            elif name == "c":
                found = replace(found, channels=int(value))
            else:
                found = replace(found, parameters=(*found.parameters, (name.removeprefix("NCCL_"), int(value))))
    except (ValueError, SettingError) as error:
        raise UsageError(f"--setting {text!r}: {error}", hint=hint) from error
    if found.is_default:
        raise UsageError("--setting is empty", hint=hint)
    return found


def with_gpu(cluster: Cluster, gpu: str) -> Cluster:
    """Return the cluster with other GPUs, over the same kind of links.

    Raises:
        UsageError: the GPU is not known.
    """
    found = find_gpu(gpu)
    if found is None:
        raise UsageError(f"unknown GPU {gpu!r}", hint="for example H100-SXM5-80GB, A100-SXM4-40GB, L40S")
    name, capability, nvlink_gbps = found
    over_nvlink = cluster.link_class in ("nvswitch", "nvlink")
    # Fitted constants are those of the GPUs that were measured.
    return replace(
        cluster,
        gpu=name,
        compute_capability=capability,
        calibration=None,
        link_gbps=nvlink_gbps if over_nvlink and nvlink_gbps else cluster.link_gbps,
    )
