"""`ncclt cluster`: where workloads run."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import REPLACE_CLUSTER, AsJson, ClusterName, Fields, Storing, spread, storage_option
from ncclt.cli.render import Column, print_json, print_table, say
from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import BANDWIDTHS, cluster_toml, format_gbps, parse_cluster_toml
from ncclt.core.name import check_name
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.option import Option
from ncclt.errors import InputError, UsageError, hide_passwords, reason
from ncclt.measure.target import Target, gpus_visible
from ncclt.store import open_store, open_to_read
from ncclt.store.location import locate
from ncclt.user_dirs import recorded_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ncclt.health.detect.detection import Detection
    from ncclt.health.doctor import Facts

app = typer.Typer(help="List, show, add and detect clusters.", no_args_is_help=True)


@app.command("list")
def list_clusters(as_json: AsJson = False) -> None:
    """List shipped, recorded and added clusters."""
    with open_to_read(storage_url()) as store:
        entries = store.clusters.entries()
    if as_json:
        print_json({"schema": 1, "clusters": [{**c.to_document(), "shipped": shipped} for c, shipped in entries]})
        return
    recorded = recorded_tables()
    columns = [
        Column("name", lambda entry: entry[0].name),
        Column("nodes x GPUs", lambda entry: f"{entry[0].nodes} x {entry[0].gpus_per_node}"),
        Column("GPU", lambda entry: entry[0].gpu),
        Column("links", lambda entry: entry[0].link_class),
        Column("fabric", lambda entry: entry[0].fabric),
        Column("NCCL", lambda entry: entry[0].nccl_version),
        Column("origin", lambda entry: "recorded" if entry[0].name in recorded else "shipped" if entry[1] else "added"),
        # `cluster show` has it where the terminal has no room for it.
        Column("description", lambda entry: entry[0].description, drop=1),
    ]
    print_table(entries, columns)


@app.command("show")
@spread
def show(
    name: ClusterName,
    toml: Annotated[bool, Option("Print a TOML file for `ncclt cluster add`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a cluster and the sources of its fields.

    link_gbps and nic_gbps are in GB/s (1e9 bytes/s), not Gb/s.
    """
    if toml and as_json:
        raise UsageError("give --toml or --json, not both")
    with open_to_read(storage_url()) as store:
        cluster = store.clusters.get(name)
    document = cluster.to_document()
    if as_json:
        print_json({"schema": 1, **document})
        return
    if toml:
        sys.stdout.write(cluster_toml(cluster))
        return
    sources = document.pop("sources")
    rows = [(field, format_gbps(value) if field in BANDWIDTHS else str(value)) for field, value in document.items()]
    print_table([*rows, *(("source", text) for text in sources)], [Column("field"), Column("value")])


@app.command("add")
@spread
def add(
    file: Annotated[Path, typer.Argument(help="Path to a TOML file like that of `ncclt cluster show NAME --toml`.")],
    *,
    storing: Annotated[Storing, Fields("replace dry_run", REPLACE_CLUSTER)],
) -> None:
    """Add a cluster from a TOML file.

    link_gbps and nic_gbps are numbers in GB/s (1e9 bytes/s), or texts with a unit such as "400 Gb/s" or "50 GB/s".
    `ncclt cluster detect` writes a cluster from what nvidia-smi and NCCL print.
    """
    from ncclt.health.detect.detection import require_plausible_links

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {reason(error)}", hint="give a TOML file") from error
    added = parse_cluster_toml(text, str(file))
    require_plausible_links(added)
    check_name(added.name, "name", kind="cluster")
    if storing.dry_run:
        print_json({"schema": 1, **added.to_document()})
        return
    with open_store(storage_url()) as store:
        store.clusters.add(added, replace=storing.replace)
        say(f"ncclt: added {added.name} to {store.shown}")


_OF_DETECTION = {
    "launcher": Option("Launcher to reach nodes; default: slurm in an allocation, else this machine."),
    "nodes": Option("Nodes to examine; default: up to 32 of the allocation, else 1.", least=1),
    "gpus_per_node": Option("GPUs per node of the all_reduce; default: all."),
    "hosts": Option("Comma-separated nodes, or @FILE with one node per line.", comma=True),
    "nccl_version": Option("NCCL version of the jobs, if no log shows it."),
}
"""Help of the options, where it differs from that for trials."""


@app.command("detect")
@spread
def detect(
    files: Annotated[list[Path] | None, typer.Argument(help="More files for --from.")] = None,
    from_: Annotated[
        list[Path] | None,
        Option("Path to saved output of nvidia-smi, ibstat or NCCL, or a folder; repeatable.", flag="--from"),
    ] = None,
    *,
    name: Annotated[str, Option("Name of the cluster; default: derived from its GPUs.")] = "",
    set_: Annotated[
        list[str] | None,
        Option(
            "Set a field, in GB/s or with a unit: nic_gbps='400 Gb/s'; repeatable.", flag="--set", metavar="FIELD=VALUE"
        ),
    ] = None,
    target: Annotated[Target, Fields("launcher nodes gpus_per_node hosts nccl_version nccl_tests", _OF_DETECTION)],
    storing: Annotated[
        Storing, Fields(own=REPLACE_CLUSTER | {"dry_run": Option("Print the TOML file without storing it.")})
    ],
) -> None:
    """Detect a cluster from its nodes, and store it.

    Prints every field with its source. Set fields that could not be detected with --set.
    """
    storage = storage_url()
    from ncclt.health.detect.detection import detect as detect_cluster

    name = name.strip()
    if name:
        check_name(name, "--name", kind="cluster")
    fields = _parse_fields(set_ or [])
    paths = [*(from_ or []), *(files or [])]
    nodes, missing = _find_facts(paths, target)
    detection = detect_cluster(nodes, fields, name=name)
    if storing.as_json:
        print_json({**detection.to_document(), "not_seen": list(missing)})
    elif not storing.dry_run:
        _print_fields(detection)
    for line in (*missing, *detection.notes):
        say(f"ncclt: note: {line}")
    cluster = detection.cluster(_build_command(paths, target, detection.name, fields, storage))
    if not storing.dry_run:
        _store(cluster, nodes, storage, replace=storing.replace)
    elif not storing.as_json:
        sys.stdout.write(detection.toml(cluster))


def _parse_fields(texts: Sequence[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if not equals or not field.strip():
            raise UsageError(f"--set {text!r} is not FIELD=VALUE", hint="for example --set nic_gbps='400 Gb/s'")
        fields[field.strip()] = value.strip()
    return fields


def _print_fields(detection: Detection) -> None:

    columns = [
        Column("field", lambda row: row.field),
        Column("value", lambda row: format_gbps(row.value) if row.field in BANDWIDTHS else str(row.value)),
        Column("seen in", lambda row: row.source),
    ]
    print_table(detection.fields.values(), columns)


def _find_facts(paths: list[Path], target: Target) -> tuple[tuple[Facts, ...], tuple[str, ...]]:
    """Return the facts of files, of this machine, or of nodes, and what is missing."""
    version = NcclVersion.parse(target.nccl_version) if target.nccl_version else None
    if paths:
        if target.launcher:
            raise UsageError("--from reads files, --launcher looks at nodes", hint="give one of them")
        from ncclt.health.doctor.files import read_files

        facts = read_files(paths)
        return (changed(facts, version=version),), facts.missing
    from ncclt.health.detect.nodes import examine_nodes

    nodes, missing = examine_nodes(target.resolved(os.environ, gpus_visible=lambda: True, for_nodes=True), os.environ)
    return tuple(changed(facts, version=version) for facts in nodes), missing


def _build_command(paths: list[Path], target: Target, name: str, fields: dict[str, str], storage: str | None) -> str:
    """Return this command, to be repeated with more fields."""
    words = ["ncclt", "cluster", "detect"]
    for path in paths:
        words += ["--from", str(path)]
    for option in ("launcher", "nodes", "gpus_per_node", "nccl_version", "nccl_tests"):
        if value := getattr(target, option):
            words += [f"--{option.replace('_', '-')}", str(value)]
    if target.hosts:
        words += ["--hosts", ",".join(target.hosts)]
    words += ["--name", name]
    for field, value in fields.items():
        words += ["--set", f"{field}={value}"]
    location = locate(storage)
    return shlex.join(words) + storage_option(storage, str(location.path or hide_passwords(location.url)))


def _store(cluster: Cluster, nodes: tuple[Facts, ...], storage: str | None, *, replace: bool) -> None:
    from ncclt.health.doctor import diagnose

    with open_store(storage) as store:
        store.clusters.add(cluster, replace=replace)
        say(f"ncclt: stored cluster {cluster.name} in {store.shown}")
        option = storage_option(storage, store.shown)
    named = shlex.quote(cluster.name)
    if any(diagnose(facts).blocking for facts in nodes):
        say("ncclt: a component is broken; run `ncclt doctor` on the same sources and repair it first")
    launcher = "" if os.environ.get("SLURM_JOB_ID") or gpus_visible() else " --launcher simulate"
    say(f"next: ncclt tune --model bert --cluster {named}{option}{launcher} --dry-run")
