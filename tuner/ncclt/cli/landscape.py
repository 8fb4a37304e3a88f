"""`ncclt landscape`: recorded clusters, and studies as tables to share."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import recorded_names
from ncclt.cli.options import AsJson, Storage
from ncclt.cli.output import print_json, print_table, say
from ncclt.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from ncclt.core.message import Collective
    from ncclt.measure.simulated import Landscape

app = typer.Typer(help="List and show recorded clusters; export a study to share it.", no_args_is_help=True)

_BAR = 12
"""Characters of the longest bar, for twice the speed: a line stays within 80 columns."""


@app.callback()
def landscape() -> None:
    """List and show recorded clusters; export a study to share it."""


def _loaded(name: str) -> Landscape:
    from ncclt.measure.simulated import load_landscape
    from ncclt.store.shipped import profiles_folder, recorded_clusters
    from ncclt.user_dirs import recorded_tables

    tables = recorded_tables()
    if name not in tables:
        raise NotFoundError(f"there is no recorded cluster {name!r}", hint=f"one of {', '.join(tables)}")
    return load_landscape(tables[name], {}, cluster=recorded_clusters(profiles_folder())[name])


@app.command("list")
def list_landscapes(as_json: AsJson = False) -> None:
    """List the recorded clusters that `--cluster NAME` replays."""
    from ncclt.user_dirs import recorded_tables

    documents = [_summary(name, _loaded(name)) for name in recorded_tables()]
    if as_json:
        print_json({"schema": 1, "landscapes": documents})
        return
    for document in documents:
        shape = f"{document['nodes']} x {document['gpus_per_node']} {document['gpu']}, NCCL {document['nccl_version']}"
        print(f"{document['name']}: {document['system']}")
        print(f"  {shape}, {document['sizes']} sizes")
        print(f"  {document['settings']} settings beside NCCL's own choice: {document['choices']}")
        print(f"  from {document['source']}")


def _summary(name: str, found: Landscape) -> dict[str, Any]:
    cluster = found.cluster
    return {
        "name": name,
        "system": cluster.description,
        "source": cluster.sources[0],
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "gpu": cluster.gpu,
        "nccl_version": cluster.nccl_version,
        "collectives": sorted({collective.value for collective, _ in found.curves}),
        "settings": len(found.settings()),
        "choices": found.choices,
        "sizes": len({size for curve in found.curves.values() for size, _ in curve}),
    }


@app.command("show")
def show(
    name: Annotated[
        str,
        typer.Argument(help="Name of the recorded cluster, see `ncclt landscape list`.", autocompletion=recorded_names),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a recorded cluster: per collective and size, NCCL's own choice and the best recorded setting."""
    found = _loaded(name)
    rows = {collective: _best_rows(found, collective) for collective in sorted({c for c, _ in found.curves})}
    document = _summary(name, found)
    if as_json:
        print_json({"schema": 1, **document, "sources": list(found.cluster.sources), "best": rows})
        return
    cluster = found.cluster
    network = f"{cluster.nics_per_node} x {cluster.nic_gbps:g} GB/s {cluster.fabric}" if cluster.nodes > 1 else "none"
    print(f"{name}: {cluster.recorded_label}")
    print(f"  {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}, NCCL {cluster.nccl_version}")
    print(f"  links: {cluster.link_class}, {cluster.link_gbps:g} GB/s; network: {network}")
    for text in (*cluster.sources[1:], *found.notes):
        say(f"  {text}", to_stdout=True)
    for collective, lines in rows.items():
        print(f"\n{collective}, recorded: µs by NCCL's own choice, and by the best recorded setting")
        table = [
            (r["size"], f"{r['default_us']:.1f}", f"{r['best_us']:.1f}", _gain_bar(r), r["setting"]) for r in lines
        ]
        print_table(("size", "default", "best", "speed-up", "setting"), table, numbers=("size", "default", "best"))


def _best_rows(found: Landscape, collective: Collective) -> list[dict[str, Any]]:
    from ncclt.core.message import Message, format_bytes
    from ncclt.core.setting import DEFAULT

    settings = [DEFAULT, *(s for s in found.settings() if (collective, s) in found.curves)]
    rows = []
    for size, _ in found.curves[collective, DEFAULT]:
        message = Message(collective=collective, dtype="int8", size_bytes=size)
        best = min(settings, key=lambda setting: found.time_us(setting, message))
        rows.append(
            {
                "size_bytes": size,
                "size": format_bytes(size),
                "default_us": found.time_us(DEFAULT, message),
                "best_us": found.time_us(best, message),
                "setting": best.label,
            }
        )
    return rows


def _gain_bar(row: dict[str, Any]) -> str:
    gain: float = row["default_us"] / row["best_us"]
    return f"{gain:6.2f}x {bar(gain - 1)}"


def bar(share: float) -> str:
    """Return a bar in eighths of a character, at most `_BAR` long.

    >>> bar(0.25), bar(0), bar(7)
    ('███', '', '████████████')
    """
    eighths = round(8 * _BAR * max(0.0, min(share, 1.0)))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


@app.command("export")
def export_study(
    key: Annotated[str, typer.Argument(help="Id, start of an id, or name of the study.")],
    out: Annotated[Path | None, typer.Option(help="File to write; default: stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    storage: Storage = None,
) -> None:
    """Write the measurements of a study as a table that `ncclt tune --landscape` replays; no hosts, no users."""
    from ncclt import __version__
    from ncclt.measure.simulated.export import export
    from ncclt.store import open_to_read

    if out is not None and out.exists() and not force:
        raise UsageError(f"{out} exists", hint="name another file, or add --force")
    with open_to_read(storage) as store:
        study = store.study(key)
        trials = store.trials(study.id)
    # The whole table first, so that no file is left half written.
    text = io.StringIO()
    rows, notes = export(study, trials, text, version=__version__)
    if not rows:
        raise UsageError(f"study {study.name} has no measurement to export", hint=" / ".join(notes) or "tune first")
    for note in notes:
        say(f"ncclt: {note}")
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    try:
        out.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written: {error.strerror}", hint="name a file in a folder of yours"
        ) from error
    say(f"ncclt: {rows} measurements of {study.name} are in {out}; `ncclt tune --landscape {out}` replays them")
