"""`ncclt admin plugin`: find, build and try the NCCL tuner plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.options import AsJson, CollectiveName, spread
from ncclt.cli.render import print_json, say
from ncclt.core.option import Option
from ncclt.errors import NotFoundError, UsageError
from ncclt.nccl.tuner_plugin import LIBRARY_NAME, find, user_library

app = typer.Typer(help="Find, build and check the NCCL tuner plugin.", no_args_is_help=True)

_LARGEST = 1 << 33
"""End of a row without one; no message is larger than 8 GiB."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@app.command("path", epilog="Exit codes: 0 = printed, 3 = no plugin.")
def path() -> None:
    """Print the path of the plugin, for NCCL_TUNER_PLUGIN."""
    sys.stdout.write(f"{_find_library()}\n")


@app.command("build")
@spread
def build(into: Annotated[Path | None, Option("Path to the output folder; default: your data folder.")] = None) -> None:
    """Compile the plugin with CC, gcc, cc or clang."""
    from ncclt.nccl.tuner_plugin.build import build as build_plugin

    library = build_plugin(user_library() if into is None else into.absolute() / LIBRARY_NAME)
    sys.stdout.write(f"{library}\n")


@app.command("check", epilog="Exit codes: 0 = it works and the table is in use, 1 = it does not, 3 = no plugin.")
@spread
def check(
    policy: Annotated[
        Path | None, typer.Argument(help="Path to a table of `ncclt env --format tuner-csv`.", show_default=False)
    ] = None,
    ranks: Annotated[int, typer.Option(help="Ranks of the communicator.", min=1, max=1_000_000)] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes of the communicator.", min=1, max=1_000_000)] = 1,
    collective: CollectiveName = "all_reduce",
    size: Annotated[
        list[str] | None, Option("Size, such as 4M; repeatable; default: one per row of the table.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load the plugin and show its choices; needs no GPU.

    Where NCCL disabled an algorithm or protocol on the real machine, the plugin leaves the call to NCCL.
    """
    from ncclt.nccl.tuner_plugin.loaded import examine

    sizes = tuple(_bytes(text) for text in size or ())
    if not sizes and policy is not None:
        sizes = _row_sizes(policy, collective)
    sizes = sizes or tuple(_bytes(text) for text in ("8", "64K", "1M", "16M", "256M", "4G"))
    loaded = examine(_find_library(), policy=policy, ranks=ranks, nodes=nodes, collective=collective, sizes=sizes)
    if as_json:
        print_json(loaded)
    else:
        asked = ", ".join(f"v{version}" for version in loaded.api_versions)
        say(f"ncclt: {loaded.library} answers as tuner API {asked}; v2 (NCCL 2.21) is also present and was not checked")
        say(f"ncclt: {loaded.said}")
        for row in loaded.choices:
            sys.stdout.write(f"{row.text()}\n")
    raise typer.Exit(0 if loaded.works else 1)


def _find_library() -> Path:

    library = find()
    if library is None:
        raise NotFoundError(
            "the NCCL tuner plugin was not found",
            hint="build it with `ncclt admin plugin build`, or name it by NCCLT_PLUGIN",
        )
    return library


def _row_sizes(policy: Path, collective: str) -> tuple[int, ...]:
    """Return a size in the middle of each row for a collective; empty if the table cannot be read."""
    try:
        rows = [line.split(",") for line in policy.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return ()
    # NCCL's names in tables have no underscores.
    word = collective.replace("_", "")
    ends = [row[1:3] for row in rows if row[0] == word and len(row) > 2 and all(end.isdecimal() for end in row[1:3])]
    return tuple(sorted({(int(low) + min(int(high), _LARGEST)) // 2 for low, high in ends if int(low) <= _LARGEST}))


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if unit not in _UNITS or not (number.isascii() and number.isdigit()):
        raise UsageError(f"{text!r} is not a size", hint="for example 65536, 64K, 4M or 1G")
    return int(number) * _UNITS[unit]
