"""Outputs of nccl-tests as a landscape: what each run forced is known, never guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from ncclt.measure.replay.landscape_rows import MAX_TIME_US, LandscapeRow
from ncclt.nccl.nccl_tests.result import NcclTest
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
    reading = _Reading(cluster=cluster, version=version)
    for path, tests in outputs.items():
        for test in tests:
            reading.add(test, path, _find_setting(test, path, settings.get(path), fallback))
    reading.require_one("nodes:", lambda run: str(run.nodes))
    reading.require_one("NCCL", lambda run: run.nccl)
    notes = []
    if reading.excluded:
        notes.append(f"{count_noun(reading.excluded, 'row')} without a time or with wrong results left out")
    nccl = next((run.nccl for run in reading.runs if run.nccl), "")
    if not nccl:
        nccl = str(cluster.version)
        notes.append(f"the outputs do not name their NCCL: {nccl} of {cluster.name} is assumed")
    rows = [replace(row, nccl_version=nccl) for row in reading.rows]
    check_replayable(rows, name)
    job = cluster.sized(nodes=rows[0].nodes, nccl_version=nccl)
    recorded = replace(
        job,
        name=name,
        description=f"{cluster.name}, {job.nodes} x {job.gpus_per_node} {job.gpu}",
        sources=(f"{count_noun(len(outputs), 'output')} of nccl-tests, imported by ncclt {version}",),
    )
    return rows, recorded, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Conditions of one run: an empty NCCL version is not known, and None where the output shows no variables."""

    path: Path
    nodes: int
    nccl: str
    conditions: Mapping[str, str] | None


@dataclass(slots=True, kw_only=True)
class _Reading:
    """Rows of the runs that were read so far, all of one cluster and under the same conditions."""

    cluster: Cluster
    version: str
    rows: list[LandscapeRow] = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)
    points: Counter[tuple[object, ...]] = field(default_factory=Counter)
    excluded: int = 0

    def add(self, test: NcclTest, path: Path, setting: Setting) -> None:
        """Add the rows of a run under its setting; InputError where it is of another cluster."""
        nodes = count_nodes(test, self.cluster, path)
        nccl = known_version(test.nccl)
        conditions = conditions_of(test) if test.variables else None
        run = _Run(path=path, nodes=nodes, nccl=str(nccl) if nccl else "", conditions=conditions)
        self._require_same_conditions(run)
        if is_another_gpu(test.gpu, self.cluster.gpu):
            raise InputError(
                f"{path.name} is from {test.gpu} GPUs, and {self.cluster.name} has {self.cluster.gpu}",
                hint="name the cluster of the outputs with --cluster",
            )
        self.runs.append(run)
        collective = collective_of(test, path)
        for result in test.rows:
            timing = result.out_of_place
            # A damaged number would be written and then not read again.
            is_sound = timing and 0 < timing.time_us <= MAX_TIME_US and 1 <= result.size_bytes <= MOST_BYTES
            if timing is None or timing.wrong or not is_sound:
                self.excluded += 1
                continue
            dtype = parse_dtype(result.dtype)
            point = (collective, dtype, result.size_bytes, setting)
            self.points[point] += 1
            self.rows.append(
                LandscapeRow(
                    system=f"{self.cluster.gpus_per_node}x {self.cluster.gpu} ({self.cluster.name})",
                    gpus=nodes * self.cluster.gpus_per_node,
                    nodes=nodes,
                    gpus_per_node=self.cluster.gpus_per_node,
                    nccl_version="",
                    collective=collective,
                    dtype=dtype,
                    size_bytes=result.size_bytes,
                    setting=setting,
                    repetition=self.points[point],
                    time_us=timing.time_us,
                    in_place=False,
                    source=f"{path.name}, nccl-tests, imported by ncclt {self.version}",
                )
            )

    def _require_same_conditions(self, run: _Run) -> None:
        first = next((earlier for earlier in self.runs if earlier.conditions is not None), run)
        if run.conditions is None or first.conditions is None:
            return
        for name in sorted({*run.conditions, *first.conditions}):
            if run.conditions.get(name) != first.conditions.get(name):
                raise InputError(
                    f"{run.path.name} was run with {name}={run.conditions.get(name, '(unset)')}, and "
                    f"{first.path.name} with {first.conditions.get(name, '(unset)')}",
                    hint="import runs under the same conditions only",
                )

    def require_one(self, noun: str, value_of: Callable[[_Run], str]) -> None:
        """Refuse runs with different values; an empty one is not known."""
        runs = [run for run in self.runs if value_of(run)]
        for run in runs:
            if value_of(run) != value_of(runs[0]):
                raise InputError(
                    f"{run.path.name} has {noun} {value_of(run)}, and {runs[0].path.name} {value_of(runs[0])}",
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
    if stated is not None:
        if requested not in (None, stated):
            raise UsageError(
                f"{path.name} was run with {stated.label}, not {requested.label}", hint="leave out --setting for it"
            )
        return stated
    setting = fallback if requested is None else requested
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
