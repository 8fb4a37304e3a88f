"""Readers: one module per source, each turning files into a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ncclt.class_table import ClassTable
from ncclt.core.plural import count_noun
from ncclt.core.workload import Provenance, Workload
from ncclt.errors import TraceError, UsageError
from ncclt.nccl.parameters import SET_BY_RULES
from ncclt.nccl.run_facts import RunFacts, read_run_facts
from ncclt.profile.reader import Reader
from ncclt.profile.source import (
    HEAD_BYTES,
    check_readable,
    ends_within_line,
    is_text,
    list_files,
    regular_files,
)
from ncclt.profile.unsupported import find_unsupported
from ncclt.profile.workload_builder import check_distinct

READERS: dict[str, str] = {
    "kineto": "ncclt.profile.readers.kineto.reader:KinetoReader",
    "execution_trace": "ncclt.profile.readers.execution_trace:ExecutionTraceReader",
    "flight_recorder": "ncclt.profile.readers.flight_recorder:FlightRecorderReader",
    "param_comms": "ncclt.profile.readers.param_comms:ParamCommsReader",
    "inspector": "ncclt.profile.readers.inspector:InspectorReader",
    "plugin_report": "ncclt.profile.readers.plugin_report:PluginReportReader",
    "deepspeed": "ncclt.profile.readers.deepspeed:DeepSpeedReader",
    "megatron_log": "ncclt.profile.readers.megatron_log:MegatronLogReader",
    "nccl_tests": "ncclt.profile.readers.nccl_tests:NcclTestsReader",
    "nccl_log": "ncclt.profile.readers.nccl_log:NcclLogReader",
    "nccl_profiler": "ncclt.profile.readers.nccl_profiler:NcclProfilerReader",
    "nsys": "ncclt.profile.readers.nsys:NsysReader",
    "horovod": "ncclt.profile.readers.horovod:HorovodReader",
    "aicb": "ncclt.profile.readers.aicb:AicbReader",
    "tracelens": "ncclt.profile.readers.tracelens:TraceLensReader",
    "csv": "ncclt.profile.readers.csv_table:CsvReader",
}
"""Name of a source -> its reader, a class; imported on use."""

_MOST_VARIABLES = 20
"""Of those that a text states, in the provenance."""


def read_workload(paths: Path | str | Sequence[Path | str], *, name: str, source: str | None = None) -> Workload:
    """Read the recorded files of one job into a workload.

    Args:
        paths: a file or folder, or several, for example a file per rank; of a folder what one reader recognises. Pipes
            are read once, and `-` is standard input.
        source: name of a reader; left out, the content of the files decides.

    Raises:
        TraceError: a file is missing, empty, damaged or of no known kind, the files do not belong together, or they
            hold no collective.
        UsageError: no file was given, or no reader is called `source`.
    """
    places = [Path(path) for path in ([paths] if isinstance(paths, Path | str) else paths)]
    if not places:
        raise UsageError("no file to read a workload from", hint="name one trace file per rank")
    check_distinct(places)
    named = None if source is None else get_reader(source)
    with regular_files(places, error=TraceError) as files:
        reader, recognised, facts, notes = _detect(list(list_files(files)), named)
        workload = reader.read(recognised, name=name)
        return replace(workload, provenance=_add_facts(workload.provenance, facts, notes))


_TABLE = ClassTable(kind="reader", group="ncclt.readers", built_in=READERS)
"""Third parties add readers to this group; each entry point names a subclass of `Reader`."""


def reader_names() -> tuple[str, ...]:
    """Return the names of all readers, the built-in ones first; none is imported."""
    return _TABLE.names()


def get_reader(name: str) -> Reader:
    """Import a reader and create it.

    Raises:
        UsageError: no reader has this name.
        MissingDependencyError: a third party's reader cannot be imported.
    """
    reader: Reader = _TABLE.load(name)()
    return reader


def _detect(
    files: Sequence[tuple[Path, bool]], named: Reader | None
) -> tuple[Reader, list[Path], list[RunFacts], list[str]]:
    """Find the first reader that recognises every file, or take the one that was named.

    Each file is looked at once, and behind the first one only the readers are asked that recognised those before. A
    file of a folder that no reader recognises is left out.

    Returns:
        The reader, its files, the facts about the run in each of their texts, and notes on files that are left out or
        cut off.
    """
    candidates: list[str] = []
    paths: list[Path] = []
    refused: list[TraceError] = []
    facts: list[RunFacts] = []
    notes: list[str] = []
    for path, is_named in files:
        try:
            heads = check_readable(path)
            kinds = [named.name] if named and is_named else _find_readers(path, heads, named, candidates)
            if not kinds:
                hint = f"sources are recognised by their content; supported: {', '.join(reader_names())}"
                unknown = TraceError(f"{path.name} is not a trace or log that ncclt can read", hint=hint)
                raise find_unsupported(path, heads) or unknown
        except TraceError as error:
            if is_named:
                raise
            refused.append(error)
            continue
        if candidates and kinds[0] not in candidates:
            raise TraceError(
                f"the files are of different kinds: {path.name} is {kinds[0]}, those before it {candidates[0]}",
                hint="import each kind on its own; of a folder, --source NAME takes one kind",
            )
        candidates = kinds
        paths.append(path)
        texts = [head for head in heads if is_text(head)]
        facts += [read_run_facts(text.decode(errors="replace")) for text in texts]
        if texts and (not texts[-1].endswith(b"\n") if len(texts[-1]) < HEAD_BYTES else ends_within_line(path)):
            notes.append(f"{path.name} ends within a line: it may be cut off")
    shown = "; ".join(error.message for error in refused[:3]) + ("; …" if len(refused) > 3 else "")
    if not paths:
        if len(refused) == 1:
            raise refused[0]
        hint = next((error.hint for error in refused if error.hint), "name the trace files, one per rank")
        raise TraceError(f"no file of the folder can be read: {shown or 'it is empty'}", hint=hint)
    if refused:
        notes.insert(0, f"{count_noun(len(refused), 'file')} of the folder left out: {shown}")
    return named or get_reader(candidates[0]), paths, facts, notes


def _find_readers(path: Path, heads: Sequence[bytes], named: Reader | None, candidates: Sequence[str]) -> list[str]:
    """Return the names of the readers of a file, of the named one alone where there is one."""

    def recognising(names: Iterable[str]) -> list[str]:
        return [name for name in names if get_reader(name).fits(path, heads)]

    if named is not None:
        return [named.name] if named.fits(path, heads) else []
    third_party = (name for name, _ in _TABLE.load_third_party())
    return recognising(candidates) or recognising(READERS) or recognising(third_party)


def _add_facts(origin: Provenance, texts: Sequence[RunFacts], file_notes: Sequence[str]) -> Provenance:
    """Add the facts in the texts beside their calls: ranks, versions, variables."""
    notes = [*origin.notes, *file_notes]
    ranks = {facts.ranks for facts in texts if facts.ranks > 1}
    world_size = origin.world_size
    if not world_size and len(ranks) == 1:
        world_size = ranks.pop()
        notes.append(f"the job has {world_size} ranks according to its command line or log")
    variables = sorted({variable for facts in texts if not facts.is_ambiguous for variable in facts.variables})
    counts = Counter(name for name, _value in variables)
    # Where two contradict each other, nothing is claimed.
    stated = {n: v for n, v in variables if v and counts[n] == 1 and not n.startswith("NCCL_DEBUG")}
    shown = [f"{name}={value}" for name, value in stated.items()]
    forced = [f"{name}={value}" for name, value in stated.items() if name.removeprefix("NCCL_") in SET_BY_RULES]
    if forced:
        notes.append(f"recorded with {' '.join(forced)}: times are of this forced setting, not of the NCCL default")
    versions = dict.fromkeys(facts.nccl for facts in texts if facts.nccl)
    added = {"nccl_version": ", ".join(versions), "nccl_variables": " ".join(shown[:_MOST_VARIABLES])}
    detail = {**{name: text for name, text in added.items() if text}, **origin.detail}
    return replace(origin, world_size=world_size, notes=tuple(notes), detail=detail)
