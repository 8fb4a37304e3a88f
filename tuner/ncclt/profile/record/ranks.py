"""Journals that the processes of a recorded job wrote."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ncclt.core.documents import Documented, Shape
from ncclt.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport(Documented):
    """One process that loaded PyTorch's optimizers.

    Attributes:
        rank: its global rank, None before the first recorded step.
        state: `loaded`, `recording` (it did not live to write), `recorded`, `cut short` or `failed`.
        steps_seen: training steps it made while it was watched.
        outside_s, inside_s: times of steps without and with the profiler, s.
        write_s: time it took to write the trace, s.
        failures: what went wrong in the recording, never in the training.
        host: the name of its machine.
        world_size: ranks of the job, 0 without a process group.
        backend: of its process group, as PyTorch names it; empty without one.
        started_with: (name, value) of the NCCL variables that the process was started with.
        set_inside: (name, value) of those that its program has set or changed.
    """

    SHAPE: ClassVar = Shape(
        name="a journal of this release of ncclt",
        complete=True,
        omitted=("host", "world_size", "backend", "started_with", "set_inside"),
        pairs=("started_with", "set_inside"),
    )

    rank: int | None
    state: str
    steps_seen: int
    outside_s: tuple[float, ...] = ()
    inside_s: tuple[float, ...] = ()
    write_s: float = 0.0
    failures: tuple[str, ...] = ()
    host: str = ""
    world_size: int = 0
    backend: str = ""
    started_with: tuple[tuple[str, str], ...] = ()
    set_inside: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Cost of recording, on the rank with the median cost.

    Attributes:
        outside_us, inside_us: median step time without and with the profiler, µs.
        low_us, high_us: quartiles of the step time without it, µs: a cost inside them is no more than noise.
        write_s: the longest time a rank took to write its trace, s.
    """

    outside_us: float
    inside_us: float
    low_us: float
    high_us: float
    write_s: float

    def describe(self, inside_us: float) -> str:
        """Describe the cost, given the step time of the recorded steps; within the quartiles there is none to see."""
        share = inside_us / self.outside_us - 1
        cost = "no overhead of recording seen"
        if inside_us > self.high_us:
            cost = f"recording made steps {share * 100:.3g} % longer"
        return (
            f"{cost}: {inside_us / 1e3:.3g} ms in the recorded steps, "
            f"{self.outside_us / 1e3:.3g} ms in others, half of which take {self.low_us / 1e3:.3g} to "
            f"{self.high_us / 1e3:.3g} ms; writing the trace took {self.write_s:.1f} s"
        )


def read_reports(folder: Path) -> tuple[RankReport, ...]:
    """Read the journals in a recording's folder, ordered by rank; one that was cut off counts as failed."""
    reports = [_read_report(path) for path in sorted((folder / "ranks").glob("*.json"))]
    return tuple(sorted(reports, key=lambda report: (report.rank is None, report.rank or 0)))


_OTHER_BACKENDS = frozenset({"gloo", "mpi"})


def is_other_backend(backend: str) -> bool:
    """Return True for a backend of PyTorch that never calls NCCL; `ucc` may, and `cpu:gloo,cuda:nccl` does."""
    return {part.rpartition(":")[2] for part in backend.split(",")} <= _OTHER_BACKENDS


def find_other_backends(reports: Sequence[RankReport]) -> str:
    """Return the backends over which the ranks trained, if NCCL was none of them; empty = that is not known."""
    backends = {report.backend for report in reports if report.steps_seen}
    return " and ".join(sorted(backends)) if backends and all(map(is_other_backend, backends)) else ""


def measure_overhead(reports: Sequence[RankReport]) -> Overhead | None:
    """Compare the step times inside and outside of the window; None where no rank has both."""
    both = [r for r in reports if r.outside_s and r.inside_s]
    if not both:
        return None
    ordered = sorted(both, key=lambda r: statistics.median(r.inside_s) / statistics.median(r.outside_s))
    typical = ordered[len(ordered) // 2]
    # Twice the same values have the same quartiles, and two values are the least that have any.
    low_s, middle_s, high_s = statistics.quantiles(typical.outside_s * 2, n=4, method="inclusive")
    return Overhead(
        outside_us=middle_s * 1e6,
        inside_us=statistics.median(typical.inside_s) * 1e6,
        low_us=low_s * 1e6,
        high_us=high_s * 1e6,
        write_s=max(r.write_s for r in both),
    )


def explain_missing_trace(folder: Path, reports: Sequence[RankReport]) -> tuple[str, str]:
    """Return the reason that no rank has written a trace, and the remedy."""
    failures = dict.fromkeys(failure for report in reports for failure in report.failures)
    if failures:
        return f"the recording failed in the ranks: {'; '.join(failures)}", "or record NCCL's log: --with nccl-log"
    if any(report.state == "recording" for report in reports):
        return "the ranks were ended while they recorded", "record fewer steps: --steps 5"
    steps = max((report.steps_seen for report in reports), default=0)
    if steps:
        return f"the training made {steps} steps, which is not beyond the warm-up", "lower --warmup"
    if reports:
        return (
            f"PyTorch was loaded by {len(reports)} process{'es' * (len(reports) > 1)}, but no optimizer made a step",
            "a program without a torch optimizer is recorded by --with nccl-log",
        )
    if (folder / "python-started").exists():
        return "no process of the command loaded PyTorch", "other programs on NCCL are recorded by --with nccl-log"
    return (
        "no Python process of the command was reached",
        "Python ignores PYTHONPATH with -I and -E; a container or another host must see the folder of --dir and "
        "inherit the environment (srun --export=ALL)",
    )


def _read_report(path: Path) -> RankReport:
    try:
        return RankReport.from_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, InputError) as error:
        reason = f"{path.name} cannot be read: {error}"
        return RankReport(rank=None, state="failed", steps_seen=0, failures=(reason,))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Step times that the ranks of one launch recorded.

    Attributes:
        step_us: time of each step of the window on the slowest rank of that step, µs; empty where `failure` is set.
        ranks: how many ranks recorded their times.
        world_size: how many there are, 0 where none knew.
        hosts: machines of these ranks.
        failure: why there are no times; empty where there are.
    """

    step_us: tuple[float, ...] = ()
    ranks: int = 0
    world_size: int = 0
    hosts: int = 0
    failure: str = ""


def read_step_times(folder: Path, *, steps: int) -> StepTimes:
    """Read the step times from a recording's folder.

    Args:
        folder: of a launch that took times only.
        steps: length of the window; a rank that did not reach its end makes the whole launch a failure.
    """
    reports = read_reports(folder)
    # torchrun and other helpers load PyTorch too, but make no steps.
    ranks = [report for report in reports if report.steps_seen or report.inside_s]
    failure = _failure(folder, reports, ranks, steps=steps)
    if failure:
        return StepTimes(failure=failure)
    return StepTimes(
        step_us=tuple(max(times_s) * 1e6 for times_s in zip(*(rank.inside_s for rank in ranks), strict=True)),
        ranks=len(ranks),
        world_size=max(rank.world_size for rank in ranks),
        hosts=len({rank.host for rank in ranks}),
    )


def _failure(folder: Path, reports: Sequence[RankReport], ranks: Sequence[RankReport], *, steps: int) -> str:
    failures = dict.fromkeys(text for report in reports for text in report.failures)
    if failures or not ranks:
        return explain_missing_trace(folder, reports)[0]
    short = min(ranks, key=lambda rank: len(rank.inside_s))
    if len(short.inside_s) < steps:
        return (
            f"the training ended after {short.steps_seen} steps, before or inside the {steps} that are measured; "
            "--warmup and --steps set how many it has to make"
        )
    known = [rank.rank for rank in ranks if rank.rank is not None]
    if len(set(known)) < len(known):
        return "a rank was started again during the launch"
    return ""
