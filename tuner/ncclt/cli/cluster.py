"""`ncclt cluster`: where workloads run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.options import AsJson, DryRun, ReplaceCluster, Storage
from ncclt.cli.output import print_json, print_table, say
from ncclt.errors import InputError

app = typer.Typer(help="List, show and add clusters.", no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """List, show and add clusters."""


@app.command("list")
def list_clusters(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the clusters that ncclt knows."""
    from ncclt.store import open_to_read

    with open_to_read(storage) as store:
        entries = store.clusters()
    if as_json:
        print_json({"schema": 1, "clusters": [{**e.item.to_document(), "shipped": e.shipped} for e in entries]})
        return
    rows = [
        (
            c.name,
            f"{c.nodes} x {c.gpus_per_node}",
            c.gpu,
            c.link_class,
            c.fabric,
            c.nccl_version,
            "shipped" if e.shipped else "added",
            c.description,
        )
        for e in entries
        for c in (e.item,)
    ]
    print_table(("name", "nodes x GPUs", "GPU", "links", "fabric", "NCCL", "origin", "description"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of the cluster, see `ncclt cluster list`.")],
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show one cluster with its sources."""
    from ncclt.store import open_to_read

    with open_to_read(storage) as store:
        found = store.cluster(name)
    if as_json:
        print_json({"schema": 1, **found.to_document()})
        return
    document = found.to_document()
    sources = document.pop("sources")
    rows = [(key, str(value)) for key, value in document.items()] + [("source", text) for text in sources]
    print_table(("field", "value"), rows)


@app.command("add")
def add(
    file: Annotated[Path, typer.Argument(help="TOML file with the fields that `cluster show NAME --json` prints.")],
    replace: ReplaceCluster = False,
    dry_run: DryRun = False,
    storage: Storage = None,
) -> None:
    """Add a cluster of your own from a TOML file."""
    from ncclt.core.cluster import Cluster
    from ncclt.store import open_store

    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", hint="give a TOML file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text", hint="give a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{file} is not TOML: {error}", hint="`ncclt cluster show leonardo` names the fields"
        ) from error
    added = Cluster.from_document(document)
    if dry_run:
        print_json({"schema": 1, **added.to_document()})
        return
    with open_store(storage) as store:
        store.add_cluster(added, replace=replace)
        say(f"ncclt: added {added.name} to {store.shown}")
