"""Times to calibrate a simulated cluster with: from outputs of nccl-tests, tables, and trials of studies."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message, parse_dtype
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome
from ncclt.errors import BenchmarkError, InputError, UsageError, reason
from ncclt.measure.benchmarks.nccl_tests.features import PROGRAMS
from ncclt.measure.simulated.calibrate import ObservedPoint
from ncclt.measure.simulated.landscape_rows import SIMULATED, read_rows
from ncclt.nccl.nccl_tests.json import parse_json
from ncclt.nccl.nccl_tests.result import NcclTest
from ncclt.nccl.nccl_tests.text import parse_text

_MODEL = re.compile(r"\b(?:[A-Z]{1,2}\d{2,4}[A-Z]{0,2}|RTX[- ]?\d{4})\b")
"""The model in the name of a GPU: H100, A100, L40S, MI355X, GB200, RTX-4090."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTimes:
    """Times, where they come from, and what had to be assumed or left out."""

    seen: tuple[ObservedPoint, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()


def observed_in_file(path: Path, cluster: Cluster) -> ObservedTimes:
    """Read the times of a file: an output of nccl-tests, text or JSON, or a table of measurements.

    Args:
        path: the file.
        cluster: whose times they are.

    Raises:
        InputError: it cannot be read, or its times cannot be those of the cluster.
    """
    if path.suffix.lower() == ".csv":
        return _table(path, cluster)
    tests = read_tests(path)
    seen: list[ObservedPoint] = []
    notes = [f"{path.name} is taken as NCCL's own choice: an output of nccl-tests does not say what was forced"]
    for test in tests:
        nodes = count_nodes(test, cluster, path)
        note = f"{path.name} is from {test.gpu} GPUs, and {cluster.name} has {cluster.gpu}: is it of this cluster?"
        if note not in notes and is_another_gpu(test.gpu, cluster.gpu):
            notes.append(note)
        if (other := _of_another_nccl(path, test.nccl, cluster)) and other not in notes:
            notes.append(other)
        collective = collective_of(test.program or test.command, path)
        for row in test.rows:
            timing = row.out_of_place or row.in_place
            if timing is None or not timing.time_us > 0 or row.size_bytes < 1 or timing.wrong:
                continue
            message = Message(collective=collective, dtype=parse_dtype(row.dtype), size_bytes=row.size_bytes)
            seen.append(ObservedPoint(nodes=nodes, setting=DEFAULT, message=message, time_us=timing.time_us))
    return ObservedTimes(
        seen=_medians(seen),
        sources=(f"{path.name}: {len(seen)} times",),
        notes=tuple(notes),
    )


def read_tests(path: Path) -> tuple[NcclTest, ...]:
    """Read an output of nccl-tests, text or JSON.

    Raises:
        InputError: it cannot be read, or is of another kind.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {reason(error)}", hint="give an output of nccl-tests") from error
    try:
        return (parse_json(text),) if text.lstrip().startswith("{") else parse_text(text)
    except BenchmarkError as error:
        raise InputError(f"{path}: {error.message}", hint="give an output of nccl-tests, or a table in CSV") from error


def collective_of(program: str | None, path: Path) -> Collective:
    """Return what a program measures; where the output does not name it, the file may."""
    words = path.stem.lower().replace("_", "").replace("-", "")
    named = [c for c in PROGRAMS if c.value.replace("_", "") in words]
    found = next((c for c, name in PROGRAMS.items() if name == program), None)
    if found is None and named and program is None:
        # The longest: all_reduce and reduce_scatter contain reduce.
        found = max(named, key=lambda collective: len(collective.value))
    if found is None:
        raise InputError(
            f"{path} does not say which collective it is of",
            hint="keep the command line in the output, or name the file after it: all_reduce.log",
        )
    return found


def is_another_gpu(named: str, expected: str) -> bool:
    """Return whether a driver's name is of another model: `NVIDIA H100 80GB HBM3` is an H100-SXM5-80GB."""
    models = [_MODEL.search(name.upper()) for name in (named, expected)]
    return all(models) and len({found[0] for found in models if found}) > 1


def _of_another_nccl(path: Path, named: str, cluster: Cluster) -> str:
    """Return a note that times were measured with another NCCL version than the cluster's; empty = not known to be."""
    try:
        version = NcclVersion.parse(named)
    except UsageError:
        return ""
    if version == cluster.version:
        return ""
    return f"{path.name} was measured with NCCL {version}, and {cluster.name} has {cluster.version}: choices may differ"


def count_nodes(test: NcclTest, cluster: Cluster, path: Path) -> int:
    """Return how many nodes of the cluster a test ran on.

    Raises:
        InputError: it did not run on whole nodes.
    """
    ranks, hosts = test.ranks, test.hosts
    if hosts and ranks % hosts == 0 and ranks != hosts * cluster.gpus_per_node:
        raise InputError(
            f"{path.name} ran on {ranks // hosts} GPUs per host, and {cluster.name} has {cluster.gpus_per_node} per "
            "node",
            hint=f"give --gpus-per-node {ranks // hosts}, or times of whole nodes",
        )
    nodes, rest = divmod(ranks, cluster.gpus_per_node)
    if rest or not nodes:
        raise InputError(
            f"{path.name} has {ranks} ranks, and {cluster.name} {cluster.gpus_per_node} GPUs per node",
            hint="give --gpus-per-node, or times of whole nodes",
        )
    return nodes


def _table(path: Path, cluster: Cluster) -> ObservedTimes:
    rows = read_rows(path)
    first = rows[0]
    if first.gpus_per_node != cluster.gpus_per_node:
        raise InputError(
            f"{path.name} has times of nodes with {first.gpus_per_node} GPUs, and {cluster.name} has "
            f"{cluster.gpus_per_node} per node",
            hint=f"give --gpus-per-node {first.gpus_per_node}, or times of whole nodes",
        )
    seen = [
        ObservedPoint(
            nodes=row.nodes,
            setting=row.setting,
            message=Message(collective=row.collective, dtype="float32", size_bytes=row.size_bytes),
            time_us=row.time_us,
        )
        for row in rows
    ]
    # An export of a simulated study is such a table.
    label = f" ({SIMULATED})" if first.is_simulated else ""
    return ObservedTimes(
        seen=_medians(seen),
        sources=(f"{path.name}{label}: {len(seen)} times",),
        notes=tuple(filter(None, (_of_another_nccl(path, first.nccl_version, cluster),))),
    )


def observed_in_trials(trials: Iterable[Trial], nodes: int, source: str) -> ObservedTimes:
    """Return the times of a study's good launches of single settings."""
    seen = [
        ObservedPoint(nodes=nodes, setting=trial.setting, message=one.message, time_us=one.time_us)
        for trial in trials
        if trial.policy is None and trial.result.outcome is Outcome.OK
        for one in trial.result.measurements
        if not one.interpolated
    ]
    return ObservedTimes(seen=_medians(seen), sources=(f"{source}: {len(seen)} times",))


def _medians(seen: Sequence[ObservedPoint]) -> tuple[ObservedPoint, ...]:
    """Return one observation of each setting, message and number of nodes."""
    times: dict[ObservedPoint, list[float]] = {}
    for one in seen:
        times.setdefault(replace(one, time_us=0.0), []).append(one.time_us)
    return tuple(replace(one, time_us=statistics.median(found)) for one, found in times.items())
