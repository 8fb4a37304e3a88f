"""Outputs of nccl-tests as a landscape: what each run forced is known, never guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ncclt.core.algo_proto_text import ALGORITHM_WORDS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import MOST_BYTES, Collective, parse_dtype
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import InputError, SettingError, UsageError
from ncclt.measure.benchmarks.nccl_tests.features import PROGRAMS
from ncclt.measure.replay.landscape import check_replayable
from ncclt.measure.replay.landscape_rows import MAX_TIME_US, LandscapeRow, build_row
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow
from ncclt.nccl.parameters import CATALOGUE, SET_BY_RULES

_MODEL = re.compile(r"\b(?:[A-Z]{1,2}\d{2,4}[A-Z]{0,2}|RTX[- ]?\d{4})\b")
"""The model in the name of a GPU: H100, A100, L40S, MI355X, GB200, RTX-4090."""

_ALGORITHMS = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}
_CHANNELS = ("MAX_CTAS", "MAX_NCHANNELS")
_FORCING = SET_BY_RULES | frozenset(parameter.name for parameter in CATALOGUE if parameter.ladder)
"""Variables that a setting holds, without NCCL_."""


def import_logs(
    outputs: Mapping[Path, Sequence[NcclTest]],
    cluster: Cluster,
    *,
    name: str,
    settings: Mapping[Path, Setting],
    fallback: Setting | None,
    version: str,
) -> tuple[list[LandscapeRow], Cluster, list[str]]:
    """Read outputs of nccl-tests as one landscape: its rows, their cluster, and notes for the user.

    Args:
        settings: forced in the runs of a file.
        fallback: forced where neither the output nor `settings` say it; None = such a file is refused.

    Raises:
        InputError: a file is of another cluster, or what it forced is not known.
    """
    runs = [
        _read_run(test, path, cluster, settings.get(path), fallback)
        for path, tests in outputs.items()
        for test in tests
    ]
    _require_same_conditions(runs)
    _require_one(runs, "nodes:", [str(run.nodes) for run in runs])
    _require_one(runs, "NCCL", [run.nccl for run in runs])
    notes = []
    timings = [(run, row) for run in runs for row in run.test.rows]
    sound = [(run, row) for run, row in timings if _is_sound(row)]
    if len(sound) < len(timings):
        excluded = count_noun(len(timings) - len(sound), "row")
        notes.append(f"{excluded} without a time or with wrong results left out")
    nccl = next((run.nccl for run in runs if run.nccl), "")
    if not nccl:
        nccl = str(cluster.version)
        notes.append(f"the outputs do not name their NCCL: {nccl} of {cluster.name} is assumed")
    job = cluster.sized(nodes=runs[0].nodes if runs else None, nccl_version=nccl)
    rows = _build_rows(job, sound, version)
    check_replayable(rows, name)
    recorded = replace(
        job,
        name=name,
        description=f"{cluster.name}, {job.nodes} x {job.gpus_per_node} {job.gpu}",
        sources=(f"{count_noun(len(outputs), 'output')} of nccl-tests, imported by ncclt {version}",),
    )
    return rows, recorded, notes


class _Run(NamedTuple):
    """One run and what is known about it; an empty NCCL version is not known."""

    path: Path
    test: NcclTest
    nodes: int
    nccl: str
    collective: Collective
    setting: Setting


def _read_run(
    test: NcclTest, path: Path, cluster: Cluster, requested: Setting | None, fallback: Setting | None
) -> _Run:
    setting = _find_setting(test, path, requested, fallback)
    nodes = count_nodes(test, cluster, path)
    if is_another_gpu(test.gpu, cluster.gpu):
        raise InputError(
            f"{path.name} is from {test.gpu} GPUs, and {cluster.name} has {cluster.gpu}",
            hint="name the cluster of the outputs with --cluster",
        )
    return _Run(path, test, nodes, str(known_version(test.nccl) or ""), collective_of(test, path), setting)


def _build_rows(job: Cluster, timings: Sequence[tuple[_Run, NcclTestRow]], version: str) -> list[LandscapeRow]:
    rows: list[LandscapeRow] = []
    points: Counter[tuple[object, ...]] = Counter()
    for run, row in timings:
        assert row.out_of_place is not None, "a sound row has a time"
        point = (run.collective, parse_dtype(row.dtype), row.size_bytes, run.setting)
        points[point] += 1
        timed = build_row(
            job,
            collective=run.collective,
            dtype=parse_dtype(row.dtype),
            size_bytes=row.size_bytes,
            setting=run.setting,
            repetition=points[point],
            time_us=row.out_of_place.time_us,
            in_place=False,
            source=f"{run.path.name}, nccl-tests, imported by ncclt {version}",
        )
        rows.append(timed)
    return rows


def _is_sound(row: NcclTestRow) -> bool:
    """Return True if a row has a time and right results; a damaged number would be written and not read again."""
    timing = row.out_of_place
    if timing is None or timing.wrong:
        return False
    return 0 < timing.time_us <= MAX_TIME_US and 1 <= row.size_bytes <= MOST_BYTES


def _require_same_conditions(runs: Sequence[_Run]) -> None:
    """Refuse runs whose outputs show other variables, beside the forced ones, than the first that shows any."""
    shown = [run for run in runs if run.test.variables]
    for run in shown:
        conditions, first = conditions_of(run.test), conditions_of(shown[0].test)
        for name in sorted({*conditions, *first}):
            if conditions.get(name) != first.get(name):
                raise InputError(
                    f"{run.path.name} was run with {name}={conditions.get(name, '(unset)')}, and "
                    f"{shown[0].path.name} with {first.get(name, '(unset)')}",
                    hint="import runs under the same conditions only",
                )


def _require_one(runs: Sequence[_Run], noun: str, values: Sequence[str]) -> None:
    """Refuse runs with different values; an empty one is not known."""
    known = [(run, value) for run, value in zip(runs, values, strict=True) if value]
    for run, value in known:
        if value != known[0][1]:
            raise InputError(
                f"{run.path.name} has {noun} {value}, and {known[0][0].path.name} {known[0][1]}",
                hint="a landscape is of one shape and NCCL version: import them apart",
            )


def _find_setting(test: NcclTest, path: Path, requested: Setting | None, fallback: Setting | None) -> Setting:
    """Return the setting of a run.

    Raises:
        InputError: the setting is unknown, or ncclt cannot express it.
        UsageError: the output contradicts the option.
    """
    if test.is_ambiguous and requested is None:
        raise InputError(
            f"{path.name} has several command lines before one run, with different variables",
            hint=f"add --setting '{path}=ring/ll' if all its runs had that setting",
        )
    stated = None if test.is_ambiguous else stated_setting(test, path)
    if requested is not None and stated is not None and stated != requested:
        raise UsageError(
            f"{path.name} was run with {stated.label}, not {requested.label}", hint="leave out --setting for it"
        )
    setting = next((choice for choice in (stated, requested, fallback) if choice is not None), None)
    if setting is None:
        raise InputError(
            f"{path.name} does not show the forced setting",
            hint=f"add --setting '{path}=ring/ll', or --setting default if nothing was forced",
        )
    return setting


def stated_setting(test: NcclTest, path: Path) -> Setting | None:
    """Return the setting that the output states, None where it states none."""
    variables = {name.removeprefix("NCCL_"): value for name, value in test.variables}
    forced = {name: value for name, value in variables.items() if name in _FORCING}
    if not forced:
        return None
    parameters = dict(forced)
    algorithm, protocol = parameters.pop("ALGO", "").lower(), parameters.pop("PROTO", "").lower()
    channels = [parameters.pop(name) for name in _CHANNELS if name in parameters]
    try:
        if unknown := parameters.keys() & SET_BY_RULES:
            raise ValueError(unknown)
        return Setting(
            algorithm=_ALGORITHMS[algorithm.replace("_", "")] if algorithm else None,
            protocol=Protocol(protocol) if protocol else None,
            channels=min(map(int, channels)) if channels else None,
            parameters=tuple((name, int(value)) for name, value in parameters.items()),
        )
    except (KeyError, ValueError, SettingError) as error:
        words = " ".join(f"NCCL_{name}={value}" for name, value in forced.items())
        raise InputError(f"{path.name}: no setting of ncclt expresses {words}", hint="leave this output out") from error


def conditions_of(test: NcclTest) -> dict[str, str]:
    """Return the variables that no setting holds; they must be the same in all runs."""
    return {
        name: value
        for name, value in test.variables
        if name.removeprefix("NCCL_") not in _FORCING and not name.startswith("NCCL_DEBUG")
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
    return all(models) and len({model[0] for model in models if model}) > 1


def known_version(text: str) -> NcclVersion | None:
    """Return the version of NCCL that an output states; None = it states none."""
    try:
        return NcclVersion.parse(text)
    except UsageError:
        return None


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
    nodes, remainder = divmod(ranks, cluster.gpus_per_node)
    if remainder or not nodes:
        raise InputError(
            f"{path.name} has {ranks} ranks, and {cluster.name} {cluster.gpus_per_node} GPUs per node",
            hint="give --gpus-per-node, or times of whole nodes",
        )
    return nodes


def parse_setting(text: str) -> Setting:
    """Read a setting as ncclt prints it: `ring/ll128 c=8 BUFFSIZE=8388608`, `ring`, or `default`.

    Raises:
        UsageError: it is not a setting.
    """
    hint = "for example --setting ring/ll128, --setting 'tree/simple c=8', or --setting default"
    words = text.split()
    if words == ["default"]:
        return DEFAULT
    setting = Setting()
    try:
        for word in words:
            name, sign, value = word.partition("=")
            if not sign:
                algorithm, _, protocol = word.lower().partition("/")
                setting = replace(
                    setting,
                    algorithm=None if algorithm == "auto" else Algorithm(algorithm),
                    protocol=Protocol(protocol) if protocol not in ("", "auto") else None,
                )
            elif name == "c":
                setting = replace(setting, channels=int(value))
            else:
                setting = replace(setting, parameters=(*setting.parameters, (name.removeprefix("NCCL_"), int(value))))
    except (ValueError, SettingError) as error:
        raise UsageError(f"--setting {text!r}: {error}", hint=hint) from error
    if setting.is_default:
        raise UsageError("--setting is empty", hint=hint)
    return setting
