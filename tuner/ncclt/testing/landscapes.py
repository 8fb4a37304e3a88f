"""Landscapes for tests: a few columns are given, the others are filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import cluster_toml
from ncclt.core.message import Collective
from ncclt.core.setting import Setting
from ncclt.measure.replay.landscape_rows import LandscapeRow, write_rows

_USUAL: dict[str, Any] = {
    "system": "box",
    "nodes": 1,
    "gpus_per_node": 8,
    "nccl_version": "2.28.9",
    "collective": "all_reduce",
    "dtype": "float32",
    "source": "a test",
}


def write_landscape(path: Path, rows: Iterable[Mapping[str, Any]], **cluster: Any) -> Path:
    """Write FILE.csv and FILE.toml and return the former.

    Args:
        path: FILE.csv.
        rows: with size_bytes and time_us; also collective, algo, proto, nchannels, parameters, and columns of the
            table. Repetitions are numbered.
        cluster: fields of the cluster; its shape and version are those of the rows.
    """
    points: Counter[tuple[object, ...]] = Counter()
    table = []
    for row in rows:
        setting = Setting(
            algorithm=Algorithm(row["algo"].lower()) if row.get("algo") else None,
            protocol=Protocol(row["proto"].lower()) if row.get("proto") else None,
            channels=int(row["nchannels"]) if row.get("nchannels") else None,
            parameters=tuple(row.get("parameters", ())),
        )
        columns = {**_USUAL, **{field.name: row[field.name] for field in fields(LandscapeRow) if field.name in row}}
        columns |= {
            "gpus": columns["nodes"] * columns["gpus_per_node"],
            "collective": Collective(columns["collective"]),
            "setting": setting,
        }
        point = (setting, columns["collective"], columns["dtype"], columns["size_bytes"])
        points[point] += 1
        table.append(LandscapeRow(**columns, repetition=points[point]))
    with path.open("w", encoding="utf-8", newline="") as file:
        write_rows(table, file)
    first = table[0]
    networked = {"fabric": "ethernet", "nics_per_node": 1, "nic_gbps": 12.5} if first.nodes > 1 else {}
    described = {
        "name": path.stem,
        "gpu": "A100-SXM4-80GB",
        "compute_capability": 80,
        "link_class": "nvlink",
        "link_gbps": 300.0,
        "description": first.system,
        "sources": (first.source,),
        **networked,
        **cluster,
    }
    recorded = Cluster(
        **described, nodes=first.nodes, gpus_per_node=first.gpus_per_node, nccl_version=first.nccl_version
    )
    path.with_suffix(".toml").write_text(cluster_toml(recorded), encoding="utf-8")
    return path
