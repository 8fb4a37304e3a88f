"""Run the commands of transcript.md in a fresh home, and write what they print: python docs/transcript.py [--check]."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
PAGE = DOCS / "transcript.md"
ROOT = DOCS.parent
_BLOCK = re.compile(
    r"(?P<head>(?:!\[[^\]]*\]\((?P<image>[^)]+\.svg)\)\n\n)?```console\n)(?P<body>.*?)^```$", re.M | re.S
)
"""A block of commands with their output; the picture above it is drawn from that output."""

_COMMAND = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", re.M)
_MARK = "\x1e"
_WIDTH = 80
_TIMEOUT_S = 600


def main() -> int:
    """Write the page and its pictures, or compare them with what the commands print now."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where an output differs")
    check = parser.parse_args().check
    differences = [line for path, text in outputs() for line in _written(path, text, check=check)]
    sys.stdout.writelines(differences)
    return 1 if differences else 0


def outputs() -> Iterator[tuple[Path, str]]:
    """Run every command of the page in order, in one shell; yield each picture, then the page, as they should be."""
    page = PAGE.read_text()
    commands = [found[1] for block in _BLOCK.finditer(page) for found in _COMMAND.finditer(block["body"])]
    printed = iter(zip(commands, _run(commands), strict=True))
    parts, end = [], 0
    for block in _BLOCK.finditer(page):
        shown = "".join(
            f"$ {command}\n{text}" for command, text in (next(printed) for _ in _COMMAND.findall(block["body"]))
        )
        parts += [page[end : block.start()], block["head"], Text.from_ansi(shown).plain.rstrip("\n"), "\n```"]
        end = block.end()
        if block["image"]:
            yield DOCS / block["image"], _svg(shown)
    yield PAGE, "".join([*parts, page[end:]])


def _run(commands: list[str]) -> list[str]:
    """Return what each command prints, both streams together, with the folder of this run as `~`."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "ncclt").symlink_to(ROOT)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "SLURM", "XDG_", "MAKE", "MFLAGS"))}
        environ = kept | {"HOME": home, "FORCE_COLOR": "1", "COLUMNS": str(_WIDTH), "PYTHONWARNINGS": ""}
        script = "".join(f"printf '{_MARK}'\n{command}\n" for command in commands)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=home,
            env=environ,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    # A first `make` in a clone also shows how it installs.
    installs = rf"^({_MARK}?)\S*python3? -m (?:pip|venv) .*\n"
    shown = re.sub(installs, r"\1", done.stdout.replace(home, "~"), flags=re.M)
    return shown.split(_MARK)[1:]


def _svg(shown: str) -> str:
    """Draw the terminal."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere, force_terminal=True, legacy_windows=False)
        console.print(Text.from_ansi(shown.rstrip("\n")))
        return console.export_svg(title="ncclt")


def _written(path: Path, text: str, *, check: bool) -> list[str]:
    """Write a file, or return how it differs."""
    if not check:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return []
    old = path.read_text() if path.exists() else ""
    lines = (old.splitlines(keepends=True), text.splitlines(keepends=True))
    return list(difflib.unified_diff(*lines, path.name, "now", n=1))


if __name__ == "__main__":
    sys.exit(main())
