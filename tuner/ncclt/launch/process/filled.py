"""A plan with its placeholders filled: what only the moment of the launch can give."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ncclt.launch.launcher import FILES, MARK, LaunchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledPlan:
    """The commands of a plan as they are run.

    Attributes:
        argv: program and arguments.
        clean_up: as in the plan.
        folder: where the plan's files lie; None = it has none.
    """

    argv: tuple[str, ...]
    clean_up: tuple[tuple[str, ...], ...]
    folder: Path | None


@contextmanager
def filled(plan: LaunchPlan, mark: str) -> Iterator[FilledPlan]:
    """Write the files of a plan into a folder of their own, and remove it afterwards.

    Raises:
        OSError: they cannot be written.
    """
    # mkdtemp gives 0700: scripts hold variables, and whoever could write there could run anything as this user.
    folder = Path(tempfile.mkdtemp(prefix="ncclt-launch-")) if plan.files else None

    def fill(word: str) -> str:
        word = word.replace(MARK, mark)
        return word.replace(FILES, str(folder)) if folder else word

    try:
        if folder:
            for name, text in plan.files:
                (folder / name).write_text(text.replace(MARK, mark), encoding="utf-8")
        yield FilledPlan(
            argv=tuple(map(fill, plan.argv)),
            clean_up=tuple(tuple(map(fill, argv)) for argv in plan.clean_up),
            folder=folder,
        )
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
