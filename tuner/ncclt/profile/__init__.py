"""Readers: one module per source, each turning files into a workload."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from ncclt.core.workload import Workload
from ncclt.errors import MissingDependencyError, TraceError, UsageError
from ncclt.profile.reader import Reader
from ncclt.profile.source import check_readable, one_look, regular_files

READERS: dict[str, str] = {
    "kineto": "ncclt.profile.readers.kineto.reader",
    "execution_trace": "ncclt.profile.readers.execution_trace.reader",
    "flight_recorder": "ncclt.profile.readers.flight_recorder.reader",
    "param_comms": "ncclt.profile.readers.param_comms.reader",
    "inspector": "ncclt.profile.readers.inspector.reader",
    "plugin_report": "ncclt.profile.readers.plugin_report",
    "deepspeed": "ncclt.profile.readers.deepspeed.reader",
    "megatron_log": "ncclt.profile.readers.megatron_log",
    "nccl_tests": "ncclt.profile.readers.nccl_tests",
    "nccl_log": "ncclt.profile.readers.nccl_log.reader",
    "nsys": "ncclt.profile.readers.nsys.reader",
    "horovod": "ncclt.profile.readers.horovod.reader",
    "aicb": "ncclt.profile.readers.aicb",
    "tracelens": "ncclt.profile.readers.tracelens",
    "csv": "ncclt.profile.readers.csv_table.reader",
}
"""Name of a source -> module that is its reader; imported on use."""

ENTRY_POINT_GROUP = "ncclt.profiles"
"""Third parties add readers here; each entry point names a module or object that is a `Reader`."""


def read_workload(paths: Path | str | Sequence[Path | str], *, name: str, source: str | None = None) -> Workload:
    """Read the recorded files of one job into a workload.

    Args:
        paths: a file, or several, for example one per rank; pipes are read once, and `-` is standard input.
        name: name of the workload.
        source: name of a reader; left out, the content of the files decides.

    Raises:
        TraceError: a file is missing, empty, damaged or of no known kind, the files do not belong together, or they
            hold no collective.
        UsageError: no file was given, or no reader is called `source`.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, Path | str) else paths)]
    if not given:
        raise UsageError("no file to read a workload from", hint="name one trace file per rank")
    seen: set[str] = set()
    for path in given:
        place = os.path.realpath(path)  # unlike `Path.resolve`, it takes a link to itself
        if place in seen:
            raise TraceError(f"{path} was given twice", hint="name every file once")
        seen.add(place)
    named = None if source is None else reader_named(source)
    with regular_files(given, error=TraceError) as files:
        reader = _detect(files, named)
        return reader.read(files, name=name)


def reader_names() -> tuple[str, ...]:
    """Return the names of all readers, the built-in ones first."""
    return (*READERS, *sorted(_third_party()))


def reader_named(name: str) -> Reader:
    """Return one reader, importing it.

    Raises:
        UsageError: no reader has this name.
        MissingDependencyError: a third party's reader cannot be imported.
    """
    if name in READERS:
        return cast(Reader, import_module(READERS[name]))
    third_party = _third_party()
    if name not in third_party:
        raise UsageError(f"unknown reader {name!r}", hint=f"known are {', '.join(reader_names())}")
    try:
        return cast(Reader, third_party[name].load())
    except ImportError as error:
        raise MissingDependencyError(
            f"the reader {name!r} cannot be imported: {error}", hint=f"install what {third_party[name].value} needs"
        ) from error


def _third_party() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in READERS}


def _detect(paths: Sequence[Path], named: Reader | None) -> Reader:
    """Return the first reader that recognises every file, or the one that was named.

    Each file is looked at once, and behind the first one only the readers are asked that recognised those before.
    """
    candidates: list[str] = []
    for path in paths:
        with one_look():
            check_readable(path)
            if named is not None:
                continue
            kinds = (
                _recognising(path, candidates)
                or _recognising(path, READERS)
                or _recognising(path, sorted(_third_party()))
            )
        if not kinds:
            raise TraceError(
                f"{path.name} is not a trace or log that ncclt can read",
                hint=f"sources are recognised by their content; known are: {', '.join(reader_names())}",
            )
        if candidates and kinds[0] not in candidates:
            raise TraceError(
                f"the files are of different kinds: {path.name} is {kinds[0]}, those before it {candidates[0]}",
                hint="import each kind on its own",
            )
        candidates = kinds
    return named or reader_named(candidates[0])


def _recognising(path: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if reader_named(name).recognises(path)]
