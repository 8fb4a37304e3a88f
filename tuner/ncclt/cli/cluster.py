"""`ncclt cluster`: where workloads run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.calibrate import calibrate, print_calibration
from ncclt.cli.cluster_detect import detect
from ncclt.cli.completion import cluster_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, DryRun, ReplaceCluster
from ncclt.cli.output import print_json, print_table, say
from ncclt.cli.simulate import simulate
from ncclt.errors import InputError, UsageError, reason

_WIDE = 120
"""Columns of a terminal that has room for descriptions."""

app = typer.Typer(help="List, show, add, detect, calibrate and simulate clusters.", no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """List, show, add, detect, calibrate and simulate clusters."""


@app.command("list")
def list_clusters(as_json: AsJson = False) -> None:
    """List shipped, recorded and added clusters."""
    from ncclt.store import open_to_read
    from ncclt.user_dirs import recorded_tables

    with open_to_read(storage_url()) as store:
        entries = store.clusters.entries()
    if as_json:
        print_json({"schema": 1, "clusters": [{**c.to_document(), "shipped": shipped} for c, shipped in entries]})
        return
    rows = [
        (
            c.name,
            f"{c.nodes} x {c.gpus_per_node}",
            c.gpu,
            c.link_class,
            c.fabric,
            c.nccl_version,
            "recorded" if c.name in recorded_tables() else "shipped" if shipped else "added",
            c.description,
        )
        for c, shipped in entries
    ]
    header = ("name", "nodes x GPUs", "GPU", "links", "fabric", "NCCL", "origin", "description")
    # `cluster show` has the description where the terminal has no room for it.
    shown = slice(-1) if sys.stdout.isatty() and shutil.get_terminal_size().columns < _WIDE else slice(None)
    print_table(header[shown], [row[shown] for row in rows])


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(help="Name of the cluster, see `ncclt cluster list`.", autocompletion=cluster_names)
    ],
    toml: Annotated[bool, typer.Option("--toml", help="Print a TOML file for `ncclt cluster add`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a cluster and the sources of its fields.

    link_gbps and nic_gbps are in GB/s (1e9 bytes/s), not Gb/s.
    """
    from ncclt.core.cluster_file import BANDWIDTHS, cluster_toml, format_gbps
    from ncclt.store import open_to_read

    if toml and as_json:
        raise UsageError("give --toml or --json, not both")
    with open_to_read(storage_url()) as store:
        found = store.clusters.get(name)
    if as_json:
        print_json({"schema": 1, **found.to_document()})
        return
    if toml:
        sys.stdout.write(cluster_toml(found))
        return
    document = found.to_document()
    sources = document.pop("sources")
    document.pop("calibration", None)
    rows = [(key, format_gbps(value) if key in BANDWIDTHS else str(value)) for key, value in document.items()]
    print_table(("field", "value"), rows + [("source", text) for text in sources])
    if found.calibration:
        print_calibration(found.calibration)


@app.command("add")
def add(
    file: Annotated[Path, typer.Argument(help="Path to a TOML file like that of `ncclt cluster show NAME --toml`.")],
    replace: ReplaceCluster = False,
    dry_run: DryRun = False,
) -> None:
    """Add a cluster from a TOML file.

    link_gbps and nic_gbps are numbers in GB/s (1e9 bytes/s), or texts with a unit such as "400 Gb/s" or "50 GB/s".
    `ncclt cluster detect` writes a cluster from what nvidia-smi and NCCL print.
    """
    from ncclt.core.cluster_file import parse_cluster_toml
    from ncclt.core.name import check_name
    from ncclt.health.detect.detection import require_plausible_links
    from ncclt.store import open_store

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {reason(error)}", hint="give a TOML file") from error
    added = parse_cluster_toml(text, str(file))
    require_plausible_links(added)
    check_name(added.name, "name", kind="cluster")
    if dry_run:
        print_json({"schema": 1, **added.to_document()})
        return
    with open_store(storage_url()) as store:
        store.clusters.add(added, replace=replace)
        say(f"ncclt: added {added.name} to {store.shown}")


app.command("calibrate")(calibrate)
app.command("detect")(detect)
app.command("simulate")(simulate)
