"""`ncclt cluster simulate`: times of a simulated cluster, as nccl-tests would print them, for planning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.completion import cluster_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, CollectiveName
from ncclt.cli.output import print_json
from ncclt.core.plural import count_noun
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.measure.simulated.sweep import SweepRow

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d{1,13})([KMG]?)I?B?", re.IGNORECASE)
_MOST_NODES = 65536
_BARS = " ▁▂▃▄▅▆▇█"


def simulate(
    *,
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="Name of the cluster, see `ncclt cluster list`.", autocompletion=cluster_names),
    ],
    collective: CollectiveName = "all_reduce",
    sizes: Annotated[str, typer.Option(help="FROM..TO, doubling, or a comma-separated list.")] = "1K..1G",
    nodes: Annotated[str, typer.Option(help="FROM..TO, doubling, or a list; default: the cluster's.")] = "",
    setting: Annotated[
        list[str], typer.Option(help="Forced setting, such as `ring/ll128 c=8`, or `default`; repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    gpus_per_node: Annotated[int | None, typer.Option(help="What if: GPUs used per node.")] = None,
    gpu: Annotated[str, typer.Option(help="What if: GPU model, such as H100-SXM5-80GB.")] = "",
    link: Annotated[str, typer.Option(help="What if: bandwidth of a GPU in the node, such as `450 GB/s`.")] = "",
    nic: Annotated[str, typer.Option(help="What if: bandwidth of a network port, such as `400 Gb/s`.")] = "",
    nics: Annotated[int | None, typer.Option(help="What if: network ports per node.", min=1)] = None,
    nccl_version: Annotated[str | None, typer.Option(help="What if: NCCL version.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a collective on a cluster, as nccl-tests prints it.

    Every figure is SIMULATED. A cluster from `ncclt cluster calibrate` has times fitted to its own measurements, and
    sizes and node counts beyond twice the fitted ones are marked `extrapolated`.
    """
    from ncclt.core.message import Collective
    from ncclt.measure.simulated.sweep import parse_setting, sweep

    if collective not in list(Collective):
        raise UsageError(f"unknown --collective {collective!r}", hint=f"one of {', '.join(Collective)}")
    settings = [parse_setting(text) for text in setting or ["default"]]
    where = _read_cluster(cluster, storage_url()).sized(gpus_per_node=gpus_per_node, nccl_version=nccl_version)
    where = _altered(where, gpu, link, nic, nics)
    counts = _range(nodes, "--nodes", most=_MOST_NODES) if nodes else [where.nodes]
    # Four bytes: one element of float32.
    swept = sorted({max(4, size // 4 * 4) for size in _range(sizes, "--sizes")})
    rows = list(sweep(where, Collective(collective), swept, counts, settings))
    calibrated = (
        where.calibration.sentence if where.calibration else "not calibrated: `ncclt cluster calibrate` fits it"
    )
    title = f"SIMULATED {collective} on {where.name}, NCCL {where.nccl_version}"
    if as_json:
        print_json(
            {
                "schema": 1,
                "simulated": True,
                "cluster": where.to_document(),
                "calibration": calibrated,
                "rows": [
                    {
                        **row.message.to_document(),
                        "nodes": row.nodes,
                        "setting": row.setting.label,
                        "algorithm": row.algorithm,
                        "protocol": row.protocol,
                        "channels": row.channels,
                        "time_us": row.time_us,
                        "busbw_gbps": row.busbw_gbps,
                        "extrapolated": row.extrapolated,
                    }
                    for row in rows
                ],
            }
        )
        return
    _print(rows, where, title, calibrated)


def _read_cluster(name: str, storage: str | None) -> Cluster:
    """Return a cluster by name; a shipped one needs no store."""
    from ncclt.store import open_to_read
    from ncclt.store.shipped import named_clusters, profiles_folder

    if (shipped := named_clusters(profiles_folder()).get(name)) is not None:
        return shipped
    with open_to_read(storage) as store:
        return store.clusters.get(name)


def _altered(cluster: Cluster, gpu: str, link: str, nic: str, nics: int | None) -> Cluster:
    """Return the cluster with the hardware of the what-if options."""
    from ncclt.core.cluster_file import parse_gbps
    from ncclt.measure.simulated.sweep import with_gpu

    found = with_gpu(cluster, gpu) if gpu else cluster
    if link:
        found = replace(found, link_gbps=parse_gbps(link, "link_gbps"))
    if nic:
        found = replace(found, nic_gbps=parse_gbps(nic, "nic_gbps"))
    if nics:
        found = replace(found, nics_per_node=nics)
    if (nic or nics) and found.fabric == "none":
        raise UsageError(f"{cluster.name} has no network", hint="describe one in a cluster file: `ncclt cluster add`")
    return found


def _range(text: str, option: str, *, most: int = 1 << 43) -> list[int]:
    """Return the numbers of `FROM..TO`, doubling, or of a list; K, M and G are powers of 1024.

    Raises:
        UsageError: it is neither, or a number is 0 or too large.
    """
    hint = f"for example {option} {'1K..1G' if option == '--sizes' else '2..64'}, or a list with commas"
    parts = text.split("..") if ".." in text else text.split(",")
    found = [_SIZE.fullmatch(part.strip()) for part in parts]
    numbers = [int(one[1]) * _UNITS[one[2].upper()] for one in found if one]
    if len(numbers) < len(parts) or not all(0 < number <= most for number in numbers):
        raise UsageError(f"{option} {text!r} is not a range of numbers from 1 to {most}", hint=hint)
    if ".." not in text:
        return sorted(set(numbers))
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise UsageError(f"{option} {text!r} does not rise", hint=hint)
    rising = [numbers[0] << shift for shift in range(64) if numbers[0] << shift <= numbers[1]]
    return sorted({*rising, numbers[1]})


def _print(rows: Sequence[SweepRow], cluster: Cluster, title: str, calibrated: str) -> None:
    print(f"# {title}: {calibrated}")
    for group in _groups(rows):
        first = group[0]
        shape = f"{first.nodes} x {cluster.gpus_per_node} {cluster.gpu}"
        print(f"#\n# {shape}, {count_noun(first.message.group_size, 'rank')}, setting {first.setting.label}")
        print(f"# {'size':>12} {'count':>12} {'type':>6} {'time':>12} {'algbw':>8} {'busbw':>8}  runs")
        print(f"# {'(B)':>12} {'(elements)':>12} {'':>6} {'(us)':>12} {'(GB/s)':>8} {'(GB/s)':>8}")
        for row in group:
            size = row.message.size_bytes
            runs = f"{row.algorithm}/{row.protocol} c={row.channels}" if row.algorithm else "send and receive"
            beyond = f"  extrapolated: {row.extrapolated}" if row.extrapolated else ""
            print(
                f"{size:14} {size // 4:12} {'float':>6} {row.time_us:12.2f} {size / row.time_us / 1e3:8.2f} "
                f"{row.busbw_gbps:8.2f}  {runs}{beyond}"
            )
    print(f"#\n# bus bandwidth by size, SIMULATED; a full bar is {max(row.busbw_gbps for row in rows):.1f} GB/s")
    most = max(row.busbw_gbps for row in rows)
    for group in _groups(rows):
        bars = "".join(_BARS[round(8 * row.busbw_gbps / most)] for row in group)
        best = max(row.busbw_gbps for row in group)
        print(f"# {group[0].nodes:5} nodes |{bars}| {best:7.1f} GB/s  {group[0].setting.label}")


def _groups(rows: Sequence[SweepRow]) -> list[list[SweepRow]]:
    found: dict[object, list[SweepRow]] = {}
    for row in rows:
        found.setdefault((row.nodes, row.setting), []).append(row)
    return list(found.values())
