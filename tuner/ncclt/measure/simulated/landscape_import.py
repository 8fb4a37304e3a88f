"""Outputs of nccl-tests as a landscape: what each run forced is known, never guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.message import MOST_BYTES, parse_dtype
from ncclt.core.plural import count_noun
from ncclt.core.setting import Setting
from ncclt.errors import InputError, UsageError
from ncclt.measure.simulated.landscape import check_replayable
from ncclt.measure.simulated.landscape_rows import MAX_TIME_US, LandscapeRow
from ncclt.measure.simulated.observations import (
    collective_of,
    conditions_of,
    count_nodes,
    is_another_gpu,
    known_version,
    stated_setting,
)
from ncclt.nccl.nccl_tests.result import NcclTest


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
    rows: list[LandscapeRow] = []
    points: Counter[tuple[object, ...]] = Counter()
    conditions: dict[Path, Mapping[str, str]] = {}
    versions: list[tuple[Path, str]] = []
    shapes: list[tuple[Path, str]] = []
    wrong, notes = 0, list[str]()
    for path, tests in outputs.items():
        for test in tests:
            nodes = count_nodes(test, cluster, path)
            setting = _setting(test, path, settings.get(path), fallback)
            if test.variables:
                conditions.setdefault(path, conditions_of(test))
                _require_same(conditions, conditions_of(test), path)
            if stated := known_version(test.nccl):
                versions.append((path, str(stated)))
            if is_another_gpu(test.gpu, cluster.gpu):
                raise InputError(
                    f"{path.name} is from {test.gpu} GPUs, and {cluster.name} has {cluster.gpu}",
                    hint="name the cluster of the outputs with --cluster",
                )
            shapes.append((path, str(nodes)))
            collective = collective_of(test, path)
            for row in test.rows:
                timing = row.out_of_place
                if timing is None or timing.wrong:
                    wrong += 1
                    continue
                # A damaged number would be written and then not read again.
                if not (0 < timing.time_us <= MAX_TIME_US and 1 <= row.size_bytes <= MOST_BYTES):
                    wrong += 1
                    continue
                dtype = parse_dtype(row.dtype)
                point = (collective, dtype, row.size_bytes, setting)
                points[point] += 1
                rows.append(
                    LandscapeRow(
                        system=f"{cluster.gpus_per_node}x {cluster.gpu} ({cluster.name})",
                        gpus=nodes * cluster.gpus_per_node,
                        nodes=nodes,
                        gpus_per_node=cluster.gpus_per_node,
                        nccl_version="",
                        collective=collective,
                        dtype=dtype,
                        size_bytes=row.size_bytes,
                        setting=setting,
                        repetition=points[point],
                        time_us=timing.time_us,
                        in_place=False,
                        source=f"{path.name}, nccl-tests, imported by ncclt {version}",
                    )
                )
    if wrong:
        notes.append(f"{count_noun(wrong, 'row')} without a time or with wrong results left out")
    _require_one("nodes:", shapes)
    _require_one("NCCL", versions)
    nccl = versions[0][1] if versions else str(cluster.version)
    if not versions:
        notes.append(f"the outputs do not name their NCCL: {nccl} of {cluster.name} is assumed")
    rows = [replace(row, nccl_version=nccl) for row in rows]
    check_replayable(rows, name)
    job = cluster.sized(nodes=rows[0].nodes, nccl_version=nccl)
    recorded = replace(
        job,
        name=name,
        description=f"{cluster.name}, {job.nodes} x {job.gpus_per_node} {job.gpu}",
        sources=(f"{count_noun(len(outputs), 'output')} of nccl-tests, imported by ncclt {version}",),
        calibration=None,
    )
    return rows, recorded, notes


def _setting(test: NcclTest, path: Path, given: Setting | None, fallback: Setting | None) -> Setting:
    """Return the setting of a run.

    Raises:
        InputError: the setting is unknown, or ncclt cannot express it.
        UsageError: the output contradicts the option.
    """
    if test.is_ambiguous and given is None:
        raise InputError(
            f"{path.name} has several command lines before one run, with different variables",
            hint=f"add --setting '{path}=ring/ll' if all its runs had that setting",
        )
    stated = None if test.is_ambiguous else stated_setting(test, path)
    if stated is not None:
        if given is not None and given != stated:
            raise UsageError(
                f"{path.name} was run with {stated.label}, not {given.label}", hint="leave out --setting for it"
            )
        return stated
    setting = given if given is not None else fallback
    if setting is None:
        raise InputError(
            f"{path.name} does not show the forced setting",
            hint=f"add --setting '{path}=ring/ll', or --setting default if nothing was forced",
        )
    return setting


def _require_same(known: Mapping[Path, Mapping[str, str]], mine: Mapping[str, str], path: Path) -> None:
    other, theirs = next(iter(known.items()))
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            raise InputError(
                f"{path.name} was run with {name}={mine.get(name, '(unset)')}, and {other.name} with "
                f"{theirs.get(name, '(unset)')}",
                hint="import runs under the same conditions only",
            )


def _require_one(what: str, values: Sequence[tuple[Path, str]]) -> None:
    for path, value in values:
        first, wanted = values[0]
        if value != wanted:
            raise InputError(
                f"{path.name} has {what} {value}, and {first.name} {wanted}",
                hint="a landscape is of one shape and NCCL version: import them apart",
            )
