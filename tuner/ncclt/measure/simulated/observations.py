"""Times to calibrate a simulated cluster with: from outputs of nccl-tests, tables, and trials of studies."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclt.core.algo_proto_text import ALGORITHM_WORDS
from ncclt.core.algorithms import Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message, parse_dtype
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Trial
from ncclt.core.trial import Outcome
from ncclt.errors import InputError, SettingError, UsageError
from ncclt.measure.benchmarks.nccl_tests.features import PROGRAMS
from ncclt.measure.simulated.calibrate import ObservedPoint
from ncclt.measure.simulated.landscape_rows import SIMULATED, read_rows
from ncclt.nccl.nccl_tests.result import NcclTest
from ncclt.nccl.parameters import CATALOGUE, SET_BY_RULES

_MODEL = re.compile(r"\b(?:[A-Z]{1,2}\d{2,4}[A-Z]{0,2}|RTX[- ]?\d{4})\b")
"""The model in the name of a GPU: H100, A100, L40S, MI355X, GB200, RTX-4090."""

_ALGORITHMS = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}
_CHANNELS = ("MAX_CTAS", "MAX_NCHANNELS")
_SEARCHED = frozenset(parameter.name for parameter in CATALOGUE if parameter.ladder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTimes:
    """Times, where they come from, and what had to be assumed or left out."""

    seen: tuple[ObservedPoint, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()


def observed_in_tests(tests: Sequence[NcclTest], path: Path, cluster: Cluster) -> ObservedTimes:
    """Return the times of an output of nccl-tests, each under the setting that its run was forced to.

    Raises:
        InputError: its times cannot be those of the cluster, or are of a setting that is not known.
    """
    seen: list[ObservedPoint] = []
    notes: dict[str, None] = {}
    for test in tests:
        nodes = count_nodes(test, cluster, path)
        if test.is_ambiguous:
            raise InputError(
                f"{path.name} has several command lines before one run, with different variables",
                hint="cut it to the runs of one command line, or leave it out",
            )
        setting = stated_setting(test, path) or DEFAULT
        taken = "states no forced setting: taken as the NCCL default"
        remarks = [f"{path.name} {taken if setting.is_default else f'was run with {setting.label}: taken as that'}"]
        if is_another_gpu(test.gpu, cluster.gpu):
            remarks.append(
                f"{path.name} is from {test.gpu} GPUs, and {cluster.name} has {cluster.gpu}: is it of this cluster?"
            )
        if other := _of_another_nccl(path, test.nccl, cluster):
            remarks.append(other)
        if conditions := conditions_of(test):
            told = " ".join(f"{name}={value}" for name, value in conditions.items())
            remarks.append(f"{path.name} was run with {told}: the calibration holds with that")
        notes |= dict.fromkeys(remarks)
        collective = collective_of(test, path)
        for row in test.rows:
            timing = row.out_of_place or row.in_place
            if timing is None or not timing.time_us > 0 or row.size_bytes < 1 or timing.wrong:
                continue
            message = Message(collective=collective, dtype=parse_dtype(row.dtype), size_bytes=row.size_bytes)
            seen.append(ObservedPoint(nodes=nodes, setting=setting, message=message, time_us=timing.time_us))
    return ObservedTimes(
        seen=_medians(seen),
        sources=(f"{path.name}: {count_noun(len(seen), 'time')}",),
        notes=tuple(notes),
    )


def stated_setting(test: NcclTest, path: Path) -> Setting | None:
    """Return the setting that the output states, None where it states none."""
    variables = {name.removeprefix("NCCL_"): value for name, value in test.variables}
    forced = {name: value for name, value in variables.items() if name in SET_BY_RULES | _SEARCHED}
    if not forced:
        return None
    algorithm, protocol = forced.pop("ALGO", "").lower(), forced.pop("PROTO", "").lower()
    channels = [forced.pop(name) for name in _CHANNELS if name in forced]
    try:
        if unknown := forced.keys() - _SEARCHED:
            raise ValueError(unknown)
        return Setting(
            algorithm=_ALGORITHMS[algorithm.replace("_", "")] if algorithm else None,
            protocol=Protocol(protocol) if protocol else None,
            channels=min(map(int, channels)) if channels else None,
            parameters=tuple((name, int(value)) for name, value in forced.items()),
        )
    except (KeyError, ValueError, SettingError) as error:
        told = " ".join(f"NCCL_{name}={value}" for name, value in variables.items() if name in SET_BY_RULES | _SEARCHED)
        raise InputError(f"{path.name}: no setting of ncclt expresses {told}", hint="leave this output out") from error


def conditions_of(test: NcclTest) -> dict[str, str]:
    """Return the variables that no setting holds; they must be the same in all runs."""
    return {
        name: value
        for name, value in test.variables
        if name.removeprefix("NCCL_") not in SET_BY_RULES | _SEARCHED and not name.startswith("NCCL_DEBUG")
    }


def collective_of(test: NcclTest, path: Path) -> Collective:
    """Return the collective of a test; where the output does not tell, the name of its file may.

    Raises:
        InputError: neither does, or ncclt has no message for it.
    """
    if isinstance(test.collective, Collective):
        return test.collective
    words = path.stem.lower().replace("_", "").replace("-", "")
    named = [c for c in PROGRAMS if c.value.replace("_", "") in words]
    if test.collective is not None:
        raise InputError(f"{path} is of {test.collective}, which ncclt does not support", hint="leave this output out")
    if not named:
        raise InputError(
            f"{path} does not say which collective it is of",
            hint="keep the command line in the output, or name the file after it: all_reduce.log",
        )
    # The longest: all_reduce and reduce_scatter contain reduce.
    return max(named, key=lambda collective: len(collective.value))


def is_another_gpu(named: str, expected: str) -> bool:
    """Return True if a driver's name is of another model: `NVIDIA H100 80GB HBM3` is an H100-SXM5-80GB."""
    models = [_MODEL.search(name.upper()) for name in (named, expected)]
    return all(models) and len({found[0] for found in models if found}) > 1


def known_version(text: str) -> NcclVersion | None:
    """Return the version of NCCL that an output states; None = it states none."""
    try:
        return NcclVersion.parse(text)
    except UsageError:
        return None


def _of_another_nccl(path: Path, named: str, cluster: Cluster) -> str:
    """Return a note that times were measured with another NCCL version than the cluster's; empty = not known to be."""
    version = known_version(named)
    if version is None or version == cluster.version:
        return ""
    return f"{path.name} was measured with NCCL {version}, and {cluster.name} has {cluster.version}: choices may differ"


def count_nodes(test: NcclTest, cluster: Cluster, path: Path) -> int:
    """Return the number of nodes of the cluster that a test ran on.

    Raises:
        InputError: its ranks are not known, or it did not run on whole nodes.
    """
    ranks, hosts = test.ranks, test.hosts
    if not ranks:
        raise InputError(
            f"{path.name} does not say on how many ranks it ran",
            hint="keep the command line or the `# Rank` lines in the output",
        )
    if ranks == 1:
        raise InputError(f"{path.name} is of one rank, which sends nothing", hint="give a run on two or more GPUs")
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


def observed_in_table(path: Path, cluster: Cluster) -> ObservedTimes:
    """Return the times of a table of measurements.

    Raises:
        InputError: it cannot be read, or its times cannot be those of the cluster.
    """
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
        sources=(f"{path.name}{label}: {count_noun(len(seen), 'time')}",),
        notes=tuple(filter(None, (_of_another_nccl(path, first.nccl_version, cluster),))),
    )


def observed_in_trials(trials: Iterable[Trial], nodes: int, source: str) -> ObservedTimes:
    """Return the times of a study's good launches of single settings."""
    seen = [
        ObservedPoint(nodes=nodes, setting=trial.setting, message=one.sent, time_us=one.time_us)
        for trial in trials
        if trial.policy is None and trial.arm is not Arm.TODAY and trial.result.outcome is Outcome.OK
        for one in trial.result.measurements
        if not one.interpolated
    ]
    return ObservedTimes(seen=_medians(seen), sources=(f"{source}: {count_noun(len(seen), 'time')}",))


def _medians(seen: Sequence[ObservedPoint]) -> tuple[ObservedPoint, ...]:
    """Return one observation of each setting, message and number of nodes."""
    times: dict[ObservedPoint, list[float]] = {}
    for one in seen:
        times.setdefault(replace(one, time_us=0.0), []).append(one.time_us)
    return tuple(replace(one, time_us=statistics.median(found)) for one, found in times.items())
