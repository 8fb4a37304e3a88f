"""A recorded landscape: times of real hardware under every setting that was measured there."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import parse_cluster_toml
from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.policy import Policy
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import Workload
from ncclt.errors import InputError, reason
from ncclt.measure.replay.landscape_rows import LandscapeRow, read_rows

Curve = tuple[tuple[int, tuple[float, ...]], ...]
"""Sizes in bytes, ascending, each with its samples in µs."""


_TO_SIGMA = 1.693
"""Expected range of three normal values in standard deviations: the tables' spread is that of the runs behind a median
of three."""

_BEYOND = 2
"""Max extrapolation, as a multiple of the largest recorded size: large messages have a constant bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """The measurements of one system under one condition.

    The dtype of a message is ignored: only bytes count. Groups other than the whole job were not recorded.

    Attributes:
        cluster: where it was recorded.
        curves: (collective, setting) -> times by size.
        sigmas: (collective, setting, size) -> standard deviation of the logarithm of a time from launch to launch, from
            the recorded spread or repeats; where it is missing, the recording says nothing about noise.
        notes: for the user.
        simulated: the times were exported from a simulated study.
    """

    cluster: Cluster
    curves: Mapping[tuple[Collective, Setting], Curve]
    sigmas: Mapping[tuple[Collective, Setting, int], float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    simulated: bool = False

    def settings(self) -> tuple[Setting, ...]:
        """Return the recorded settings that are not the default, in a stable order."""
        return tuple(sorted({s for _, s in self.curves if not s.is_default}, key=lambda s: s.label))

    def covers(self, message: Message) -> bool:
        """Return True if the default and something to choose were recorded for a message, around its size."""
        return bool(self.time_samples(DEFAULT, message)) and any(
            setting != DEFAULT and collective is message.collective and self.time_samples(setting, message)
            for collective, setting in self.curves
        )

    @property
    def choices(self) -> str:
        """Return the sizes recorded under other settings than the default, as `all_reduce 1 KiB to 1 GiB, ...`."""
        sizes: dict[Collective, set[int]] = {}
        for (collective, setting), curve in self.curves.items():
            if not setting.is_default:
                sizes.setdefault(collective, set()).update(size for size, _ in curve)
        return ", ".join(
            f"{collective} {' to '.join(dict.fromkeys(format_bytes(end) for end in (min(recorded), max(recorded))))}"
            for collective, recorded in sorted(sizes.items())
        )

    def recorded(self, setting: Setting, message: Message) -> Setting | None:
        """Return the recorded setting with the effect of `setting` on a message, None where there is none.

        A pair that does not exist for the collective leaves the choice to NCCL, so the default's times apply. Channels
        forced with it are left to NCCL too: a tuner table has no row for such a collective.
        """
        reaching = setting.applied_to(message.collective, version=self.cluster.version)
        if reaching != setting and not reaching.algorithm and not reaching.protocol:
            reaching = replace(reaching, channels=None, confined=False)
        return next((s for s in (setting, reaching) if (message.collective, s) in self.curves), None)

    def time_samples(self, setting: Setting, message: Message) -> tuple[float, ...]:
        """Return the recorded times, µs; between two sizes interpolated in log size and log time.

        Up to twice the largest recorded size, the bandwidth of the largest applies. Below the smallest one its time
        applies to sizes that nccl-tests rounds up to it.

        Returns:
            One or more samples, or none where the setting was not recorded for this collective around this size.
        """
        recorded = self.recorded(setting, message)
        if recorded is None or message.group_size not in (0, self.cluster.world_size):
            return ()
        curve = self.curves[message.collective, recorded]
        right = bisect.bisect_left([size for size, _ in curve], message.size_bytes)
        if right == len(curve):
            last, samples = curve[-1]
            factor = message.size_bytes / last
            # A curve that ends before the default's would be extrapolated beside a default that was recorded.
            reaches_end = last >= self.curves.get((message.collective, DEFAULT), curve)[-1][0]
            return tuple(factor * time for time in samples) if factor <= _BEYOND and reaches_end else ()
        if curve[right][0] == message.size_bytes:
            return curve[right][1]
        if right == 0:
            smallest, samples = curve[0]
            return samples if smallest - message.size_bytes <= message.rounding_bytes else ()
        return _between(curve[right - 1], curve[right], message.size_bytes)

    def sigma(self, setting: Setting, message: Message) -> float:
        """Return the recorded noise from launch to launch at the nearest recorded size; 0 where none was recorded."""
        recorded = self.recorded(setting, message)
        if recorded is None:
            return 0.0
        sizes = [size for size, _ in self.curves[message.collective, recorded]]
        nearest = min(sizes, key=lambda size: abs(math.log(size / message.size_bytes)))
        return self.sigmas.get((message.collective, recorded, nearest), 0.0)

    def is_exact(self, setting: Setting, message: Message) -> bool:
        """Return True if exactly this size was recorded under the setting."""
        recorded = self.recorded(setting, message)
        curve = self.curves.get((message.collective, recorded), ()) if recorded is not None else ()
        return any(size == message.size_bytes for size, _ in curve)

    def caveats(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Describe the limits of the recording for these messages: run-to-run variation, and extrapolated sizes."""
        wanted = list(messages)
        beyond = [m for m in wanted if m.size_bytes > self.curves[m.collective, DEFAULT][-1][0]]
        sigmas = {m: self.sigma(DEFAULT, m) for m in wanted}
        recorded = [sigma for sigma in sigmas.values() if sigma]
        noise = "no run-to-run variation was recorded, so the interval does not cover noise"
        if recorded:
            lacking = len(wanted) - len(recorded)
            none = f"; none recorded for {lacking} of {len(wanted)} messages" if lacking else ""
            percent = statistics.median(recorded) * 100
            noise = f"replayed with the recorded run-to-run variation (default: {percent:.2g} %{none})"
        extrapolated = ", ".join(f"{m.collective} {format_bytes(m.size_bytes)}" for m in beyond)
        return (
            noise,
            *((f"extrapolated at the bandwidth of the largest recorded size: {extrapolated}",) if beyond else ()),
        )

    def speedups(self, workload: Workload, policy: Policy) -> tuple[float, float]:
        """Return the speed-up of the best policy that the recording holds, and that of `policy`, both without noise."""
        default_us = self.policy_us(Policy(), workload)
        return default_us / self.best_us(workload), default_us / self.policy_us(policy, workload)

    def policy_us(self, policy: Policy, workload: Workload) -> float:
        """Return the recorded communication time per step under a policy, µs; infinite where it was not recorded."""
        return sum(c.calls_per_step * self.time_us(policy.setting_for(c.message), c.message) for c in workload.messages)

    def best_us(self, workload: Workload) -> float:
        """Return the time per step of the best policy that the recording holds, by exhaustive search, µs.

        Every message takes the fastest recorded setting; process-wide parameters are the same for all.
        """
        groups: dict[tuple[tuple[str, int], ...], list[Setting]] = {(): [DEFAULT]}
        for setting in self.settings():
            groups.setdefault(setting.parameters, []).append(setting)
        return min(
            sum(c.calls_per_step * min(self.time_us(s, c.message) for s in group) for c in workload.messages)
            for group in groups.values()
        )

    def time_us(self, setting: Setting, message: Message) -> float:
        """Return the median of the recorded times, µs; infinite where there is none."""
        samples = self.time_samples(setting, message)
        return statistics.median(samples) if samples else math.inf


def _between(
    below: tuple[int, tuple[float, ...]], above: tuple[int, tuple[float, ...]], size: int
) -> tuple[float, ...]:
    share = math.log(size / below[0]) / math.log(above[0] / below[0])
    pairs = [(statistics.median(below[1]), statistics.median(above[1]))]
    if len(below[1]) == len(above[1]):
        # By rank, so that the spread is interpolated as well.
        pairs = list(zip(sorted(below[1]), sorted(above[1]), strict=True))
    return tuple(math.exp((1 - share) * math.log(low) + share * math.log(high)) for low, high in pairs)


def load_landscape(path: Path) -> Landscape:
    """Read a landscape: the table `NAME.csv`, and its cluster from `NAME.toml` beside it.

    Raises:
        InputError: a file is missing or damaged, the two differ, or the default or a second setting is missing.
    """
    path = Path(path)
    rows = read_rows(path)
    cluster = _read_cluster(path)
    first = rows[0]
    described = {"nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node, "nccl_version": str(cluster.version)}
    for column, wanted in described.items():
        if getattr(first, column) != wanted:
            raise InputError(
                f"{path.name}, line {first.number}: {column} is {getattr(first, column)}, and {wanted} in "
                f"{path.stem}.toml",
                hint="correct one of the two files",
            )
    check_replayable(rows, path.name)
    curves = curves_of(rows)
    return Landscape(
        cluster=cluster,
        curves=curves,
        sigmas=_sigmas(rows, curves),
        notes=("in-place times",) if first.in_place else (),
        simulated=first.is_simulated,
    )


def _read_cluster(path: Path) -> Cluster:
    file = path.with_suffix(".toml")
    try:
        return parse_cluster_toml(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path.name} needs its cluster in {file.name} beside it, which cannot be read: {reason(error)}",
            hint="write it as `ncclt cluster show leonardo --toml` shows one",
        ) from error
    except InputError as error:
        raise InputError(f"{file.name}: {error.message}", hint=error.hint) from error


def curves_of(rows: Iterable[LandscapeRow]) -> dict[tuple[Collective, Setting], Curve]:
    """Collect rows into curves; several rows of one point are its samples."""
    points: dict[tuple[Collective, Setting], dict[int, list[float]]] = {}
    for row in rows:
        points.setdefault((row.collective, row.setting), {}).setdefault(row.size_bytes, []).append(row.time_us)
    return {key: tuple((size, tuple(times)) for size, times in sorted(sizes.items())) for key, sizes in points.items()}


def _sigmas(
    rows: Iterable[LandscapeRow], curves: Mapping[tuple[Collective, Setting], Curve]
) -> dict[tuple[Collective, Setting, int], float]:
    """Return the noise of every point that has several samples, or one with a spread above 0."""
    from_spread = {(r.collective, r.setting, r.size_bytes): r.spread / _TO_SIGMA for r in rows if r.spread}
    repeated = {
        (collective, setting, size): statistics.stdev(math.log(time) for time in samples)
        for (collective, setting), curve in curves.items()
        for size, samples in curve
        if len(samples) > 1
    }
    return from_spread | repeated


def check_replayable(rows: Iterable[LandscapeRow], name: str) -> None:
    """Refuse rows without the default of each collective, or without another setting.

    Raises:
        InputError: nothing could be tuned with them; the message begins with `name`.
    """
    curves = curves_of(rows)
    settings = {setting for _, setting in curves}
    if DEFAULT not in settings:
        raise InputError(
            f"{name} has no row of the NCCL default, the baseline of every speedup",
            hint="add an nccl-tests output without forced settings, or rows with is_default 1 and blank algo, proto, "
            "nchannels and parameters",
        )
    if settings == {DEFAULT}:
        raise InputError(
            f"{name} has the NCCL default only, no setting to compare with it",
            hint="add outputs or rows of other settings",
        )
    lacking = sorted({c for c, _ in curves} - {c for c, s in curves if s.is_default})
    if lacking:
        raise InputError(f"{name} has no default row for {', '.join(lacking)}", hint="add it, or leave it out")
