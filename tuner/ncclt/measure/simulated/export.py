"""A study as a table of measurements: the format that `--landscape` reads, without hosts and users."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.setting import Setting
from ncclt.core.study import Study, Trial
from ncclt.core.trial import Measurement, Outcome
from ncclt.measure.simulated.landscape_rows import OPTIONAL, PARAMETER_COLUMNS, REQUIRED, SIMULATED

COLUMNS = (*REQUIRED[:3], *OPTIONAL[:3], *REQUIRED[3:8], *OPTIONAL[3:7], REQUIRED[8], *OPTIONAL[7:])
"""All columns, in the order of the public tables."""


def export(study: Study, trials: Iterable[Trial], file: TextIO, *, version: str) -> tuple[int, tuple[str, ...]]:
    """Write every good measurement of a study as a row.

    Args:
        study: with its cluster.
        trials: of the study.
        file: receives the table.
        version: of ncclt.

    Returns:
        The number of rows, and what was left out and why.
    """
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    good = [(t, m) for t in trials if t.result.outcome is Outcome.OK for m in t.result.measurements]
    whole = [(t, m) for t, m in good if m.message.group_size in (0, study.cluster.world_size) and not m.interpolated]
    rows = list(_rows(study, whole, version))
    writer.writerows(rows)
    parts = {m.message for _, m in good if m.message.group_size not in (0, study.cluster.world_size)}
    between = sum(m.interpolated for _, m in good)
    notes = []
    if parts:
        notes.append(f"{len(parts)} messages of smaller groups were left out: a landscape is of one shape of job")
    if between:
        notes.append(f"{between} interpolated times were left out: they were not measured")
    return len(rows), tuple(notes)


def _rows(study: Study, measured: Iterable[tuple[Trial, Measurement]], version: str) -> Iterator[dict[str, object]]:
    origin = "; ".join(filter(None, (study.label, f"study {study.name}", study.created[:10], f"ncclt {version}")))
    for trial, measurement in measured:
        persistent = ("persistent ranks",) if trial.result.persistent else ()
        notes = (*persistent, *((SIMULATED,) if study.simulated else ()))
        setting = trial.setting_of(measurement.message)
        yield row_of(study.cluster, setting, measurement, notes=notes, origin=origin)


def row_of(
    cluster: Cluster, setting: Setting, measurement: Measurement, *, notes: Sequence[str], origin: str
) -> dict[str, object]:
    """Return the row of one measurement.

    Args:
        cluster: the whole job.
        setting: what was forced.
        measurement: of a message over the whole job.
        notes: for `other_env`, beside the parameters.
        origin: for `source`.
    """
    message = measurement.message
    parameters = dict(setting.parameters)
    forced = [f"NCCL_{name}={value}" for name, value in setting.parameters if name not in PARAMETER_COLUMNS.values()]
    return {
        "system": f"{cluster.gpus_per_node}x {cluster.gpu} ({cluster.name})",
        "gpus": cluster.world_size,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "interconnect": _interconnect(cluster),
        "nccl_version": cluster.nccl_version,
        "collective": message.collective.value,
        "dtype": message.dtype,
        "size_bytes": message.size_bytes,
        "algo": setting.algorithm or "",
        "proto": setting.protocol or "",
        "nchannels": setting.channels or "",
        **{column: parameters.get(name, "") for column, name in PARAMETER_COLUMNS.items()},
        "other_env": "; ".join([*forced, *notes]),
        "time_us": f"{measurement.time_us:.6g}",
        "algbw_gbps": f"{message.size_bytes / measurement.time_us / 1e3:.6g}",
        "busbw_gbps": f"{measurement.busbw_gbps:.6g}" if message.collective is not Collective.SEND_RECV else "",
        "in_place": "",
        "source": origin,
        "licence": "",
    }


def _interconnect(cluster: Cluster) -> str:
    links = {"pcie": "PCIe", "shm": "PCIe, no P2P, SHM", "nvlink": "NVLink", "nvswitch": "NVSwitch"}[cluster.link_class]
    if cluster.nodes == 1:
        return links
    return f"{links}; {cluster.nics_per_node}x{round(cluster.nic_gbps * 8)}Gb/s {cluster.fabric}"
