"""`ncclt landscape`: recorded clusters, and how to make one of a study or of outputs of nccl-tests."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt import __version__
from ncclt.cli.completion import recorded_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, StudyKey, spread
from ncclt.cli.render import Column, draw_bar, print_json, print_table, print_text, say
from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import cluster_toml
from ncclt.core.message import Collective, Message, format_bytes
from ncclt.core.name import check_name
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import NotFoundError, UsageError
from ncclt.measure.replay import Landscape, load_landscape
from ncclt.measure.replay.export import export, exported_cluster
from ncclt.measure.replay.landscape_import import import_logs, parse_setting
from ncclt.measure.replay.landscape_rows import LandscapeRow, write_rows
from ncclt.profile.source import list_files
from ncclt.store import open_to_read
from ncclt.user_dirs import landscape_folder, recorded_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


app = typer.Typer(help="Show, import and export recorded measurements.", no_args_is_help=True)

_BAR = 12
"""Characters of the longest bar, for twice the speed: a line stays within 80 columns."""


def _load(name: str) -> Landscape:

    tables = recorded_tables()
    if name not in tables:
        raise NotFoundError(f"there is no recorded cluster {name!r}", hint=f"one of {', '.join(tables)}")
    return load_landscape(tables[name])


def _print_all(*, as_json: bool) -> None:

    landscapes = {name: _load(name) for name in recorded_tables()}
    if as_json:
        print_json({"schema": 1, "landscapes": [_build_summary(*entry) for entry in landscapes.items()]})
        return
    for name, landscape in landscapes.items():
        summary, cluster = _build_summary(name, landscape), landscape.cluster
        print(f"{name}: {cluster.description}")
        print(f"  {_describe_shape(cluster)}, {count_noun(summary['sizes'], 'size')}")
        print(f"  {count_noun(summary['settings'], 'setting')} and the NCCL default:  {landscape.choices}")
        print(f"  from {summary['source']}")


def _describe_shape(cluster: Cluster) -> str:
    return f"{cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}, NCCL {cluster.nccl_version}"


def _build_summary(name: str, landscape: Landscape) -> dict[str, Any]:
    cluster = landscape.cluster
    return {
        "name": name,
        "system": cluster.description,
        "source": cluster.sources[0],
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "gpu": cluster.gpu,
        "nccl_version": cluster.nccl_version,
        "collectives": sorted({collective.value for collective, _ in landscape.curves}),
        "settings": len(landscape.settings()),
        "choices": landscape.choices,
        "sizes": len({size for curve in landscape.curves.values() for size, _ in curve}),
    }


@app.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the recorded cluster; default: list all.", autocompletion=recorded_names),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best recorded settings of a cluster, or list all.

    --cluster NAME replays a recorded cluster.
    """
    if name is None:
        _print_all(as_json=as_json)
        return
    landscape = _load(name)
    cluster = landscape.cluster
    best = {
        collective: _find_best(landscape, collective)
        for collective in sorted({collective for collective, _ in landscape.curves})
    }
    if as_json:
        print_json({"schema": 1, **_build_summary(name, landscape), "sources": list(cluster.sources), "best": best})
        return
    network = f"{cluster.nics_per_node} x {cluster.nic_gbps:g} GB/s {cluster.fabric}" if cluster.nodes > 1 else "none"
    print(f"{name}: {cluster.recorded_label}")
    print(f"  {_describe_shape(cluster)}")
    print(f"  links: {cluster.link_class}, {cluster.link_gbps:g} GB/s; network: {network}")
    for text in (*cluster.sources[1:], *landscape.notes):
        print_text(f"  {text}")
    columns = [
        Column("size", lambda row: row["size"], right=True),
        Column("default", lambda row: f"{row['default_us']:.1f}", right=True),
        Column("best", lambda row: f"{row['best_us']:.1f}", right=True),
        Column(
            "speed-up", lambda row: f"{(gain := row['default_us'] / row['best_us']):6.2f}x {draw_bar(gain - 1, _BAR)}"
        ),
        Column("setting", lambda row: row["setting"]),
    ]
    for collective, rows in best.items():
        print(f"\n{collective}, recorded: µs with the NCCL default and with the best recorded setting")
        print_table(rows, columns)


def _find_best(landscape: Landscape, collective: Collective) -> list[dict[str, Any]]:
    """Return the best recorded setting of each size."""
    settings = [DEFAULT, *(s for s in landscape.settings() if (collective, s) in landscape.curves)]
    rows = []
    for size, _ in landscape.curves[collective, DEFAULT]:
        message = Message(collective=collective, dtype="int8", size_bytes=size)
        best_us, best = min(
            ((landscape.time_us(setting, message), setting) for setting in settings), key=lambda pair: pair[0]
        )
        rows.append(
            {
                "size_bytes": size,
                "size": format_bytes(size),
                "default_us": landscape.time_us(DEFAULT, message),
                "best_us": best_us,
                "setting": best.label,
            }
        )
    return rows


@app.command("import")
@spread
def import_landscape(
    logs: Annotated[list[Path], typer.Argument(help="Outputs of nccl-tests, as text or JSON (-J), or their folder.")],
    name: Annotated[str, Option("Name of the landscape and its cluster.")],
    cluster: Annotated[str, Option("Cluster of the outputs, see `ncclt cluster list`.")],
    gpus_per_node: Annotated[int | None, Option("GPUs per node of the runs; default: all.")] = None,
    settings: Annotated[
        list[str],
        Option(
            "[LOG=]SETTING of outputs that name none: default, tree/ll; repeatable.",
            flag="--setting",
            metavar="[LOG=]SETTING",
        ),
    ] = [],  # noqa: B006 - typer copies it
    force: Annotated[bool, Option("Replace a landscape of this name.")] = False,
) -> None:
    """Import outputs of nccl-tests as a landscape.

    `ncclt tune --cluster NAME` replays it.

    The forced setting is read from command lines (-x NCCL_ALGO=tree) and NCCL_DEBUG=INFO lines of the outputs.
    """
    from ncclt.profile.readers.nccl_tests import read_tests

    check_name(name, "--name", kind="cluster")
    target = landscape_folder() / f"{name}.csv"
    with open_to_read(storage_url()) as store:
        job = store.clusters.get(cluster).sized(gpus_per_node=gpus_per_node)
        is_taken = name in {cluster.name for cluster, _ in store.clusters.entries()}
    if is_taken and not (force and target.is_file()):
        hint = "choose another --name" + (", or add --force" if target.is_file() else "")
        raise UsageError(f"there is a cluster {name!r} already", hint=hint)
    for log in logs:
        if sum(log.resolve() == path.resolve() for path in logs) > 1:
            raise UsageError(f"{log} is given twice", hint="give each output once: it is one repetition")
    files = [file for file, _is_named in list_files(logs)]
    of_logs, fallback = _settings(settings, files)
    outputs = {log: read_tests(log) for log in files}
    rows, recorded, notes = import_logs(
        outputs, job, name=name, settings=of_logs, fallback=fallback, version=__version__
    )
    _write(target, rows, recorded, option="XDG_DATA_HOME")
    for note in notes:
        say(f"ncclt: {note}")
    forced = len({row.setting for row in rows if not row.setting.is_default})
    print(f"{name}: {count_noun(len(rows), 'time')}, the default and {count_noun(forced, 'setting')}, in {target}")
    print(f"`ncclt tune --cluster {name}` replays them")


def _settings(texts: Sequence[str], logs: Sequence[Path]) -> tuple[dict[Path, Setting], Setting | None]:
    """Return the settings of single outputs, and that of all others; None = not given."""
    of_logs: dict[Path, Setting] = {}
    fallback = None
    for text in texts:
        # Names of files may contain an equals sign, and settings do.
        cuts = [at for at, sign in enumerate(text) if sign == "="]
        cut = next((at for at in reversed(cuts) if Path(text[:at]) in logs), None)
        if cut is not None:
            log = Path(text[:cut])
            if log in of_logs:
                raise UsageError(f"--setting names {log} twice", hint="give one setting for each output")
            of_logs[log] = parse_setting(text[cut + 1 :])
        elif cuts and "." in text[: cuts[0]]:  # no setting has a dot
            raise UsageError(
                f"--setting {text!r}: there is no output {text[: cuts[0]]}", hint="name an output as given"
            )
        elif fallback is not None:
            raise UsageError(
                f"--setting {text!r} is for all outputs, and so is another one",
                hint=f"name its output: --setting '{logs[0]}={text}'",
            )
        else:
            fallback = parse_setting(text)
    return of_logs, fallback


def _write(path: Path, rows: Iterable[LandscapeRow], cluster: Cluster, *, option: str) -> None:
    """Write a landscape: the table, and its cluster beside it; the table last, for it makes both count.

    Raises:
        UsageError: a file cannot be written.
    """
    from ncclt.cli.env import write_whole

    text = io.StringIO()
    write_rows(rows, text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be made: {error.strerror}", hint=f"give another {option}") from error
    write_whole(path.with_suffix(".toml"), cluster_toml(cluster), option=option)
    write_whole(path, text.getvalue(), option=option)


@app.command("export")
@spread
def export_study(
    key: StudyKey,
    out: Annotated[Path | None, Option("Path to FILE.csv, with FILE.toml beside it; default: stdout.")] = None,
    force: Annotated[bool, Option("Replace the file.")] = False,
) -> None:
    """Export the measurements of a study, without hosts and users."""
    if out is not None:
        if out.suffix != ".csv":
            raise UsageError(f"{out} has no ending .csv", hint="name it FILE.csv; FILE.toml beside it is the cluster")
        check_name(out.stem, "--out", kind="cluster")
        existing = next((path for path in (out, out.with_suffix(".toml")) if path.exists()), None)
        if existing is not None and not force:
            raise UsageError(f"{existing} exists", hint="name another file, or add --force")
    with open_to_read(storage_url()) as store:
        study = store.studies.get(key)
        trials = store.trials.find(study.id)
    rows, notes = export(study, trials, version=__version__)
    if not rows:
        raise UsageError(f"study {study.name} has no measurement to export", hint=" / ".join(notes) or "tune first")
    for note in notes:
        say(f"ncclt: {note}")
    if out is None:
        write_rows(rows, sys.stdout)
        return
    _write(out, rows, exported_cluster(study, rows, name=out.stem), option="--out")
    say(f"ncclt: {len(rows)} measurements of {study.name} are in {out}; `ncclt tune --landscape {out}` replays them")
