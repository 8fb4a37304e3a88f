"""Reports of the ncclt tuner plugin (docs/internals/tuner-plugin.md): JSON lines, a file per communicator and process.

NCCL asks the plugin about every collective that it launches, with the size it tunes by, so the report counts exactly
and costs the job next to nothing. It knows no dtype, no time and no training step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ncclt.core.message import Collective
from ncclt.core.workload import Workload
from ncclt.errors import TraceError
from ncclt.profile.nccl_calls import UNKNOWN_DTYPE, Choices, build_message
from ncclt.profile.numbers import MOST_RANKS, parse_int
from ncclt.profile.reader import Call, Reader, Source
from ncclt.profile.source import Document, lines, parse_json
from ncclt.profile.workload_builder import check_bounded, format_day, join_distinct, largest_group_notes

_MARK = b'{"ncclt_plugin_report":'
_FORMAT = 1
_TUNABLE = {collective.value: collective for collective in Collective if collective.is_tunable}
_NO_COMMUNICATOR = "0" * 16
"""Before tuner API v5 NCCL gave a plugin no id."""


@dataclass(slots=True, kw_only=True)
class CommunicatorReport:
    """One communicator as one process saw it.

    Attributes:
        head: the first line.
        label: the file.
        calls: (collective, size in bytes) -> calls.
        asked: (collective, size in bytes, what the plugin asked for) -> calls.
        refused: the same for what the table wanted and NCCL did not offer.
        uncounted: calls whose size was not kept.
    """

    head: Mapping[str, Any]
    label: str
    calls: Counter[tuple[Collective, int]] = field(default_factory=Counter)
    asked: Counter[tuple[Collective, int, str]] = field(default_factory=Counter)
    refused: Counter[tuple[Collective, int, str]] = field(default_factory=Counter)
    uncounted: int = 0

    @property
    def process(self) -> tuple[str, int, int]:
        """Return host, process id and the launcher's rank: containers may share the first two."""
        return str(self.head["host"]), int(self.head["pid"]), int(self.head["launch_rank"])

    @property
    def group(self) -> str:
        """Return the identity of the communicator on this rank."""
        named = str(self.head["communicator"])
        return named if named != _NO_COMMUNICATOR else f"{self.process}:{self.head['number']}"


class PluginReportReader(Reader):
    """Reader of the plugin's reports: all files that the processes of a job left in its folder."""

    name = "plugin_report"
    empty = "no call was counted"
    hint = "let the job run some steps; send_recv and all_to_all never reach a tuner plugin"

    def begins(self, beginning: bytes) -> bool:
        """Return True for the first line of a report."""
        return beginning.startswith(_MARK)

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls GPU by GPU; a process that drives several shows one communicator several times."""
        reports = read_reports(source.documents())
        source.labels = sorted(dict.fromkeys(source.labels))
        world_size = max((int(report.head["ranks"]) for report in reports), default=0)
        repeats: Counter[tuple[Any, ...]] = Counter()
        gpus: set[tuple[Any, ...]] = set()
        for report in reports:
            lane = (*report.process, repeats[report.process, report.group])
            repeats[report.process, report.group] += 1
            gpus.add(lane)
            ranks = int(report.head["ranks"])
            spans_nodes = int(report.head["nodes"]) > 1 and 1 < ranks < world_size
            for (collective, size), count in report.calls.items():
                name = f"calls of {collective}"
                message = build_message(name, collective, size, group_size=ranks, spans_nodes=spans_nodes)
                yield from source.admit(message, count=count, lane=lane, group=report.group)
        source.world_size = world_size if len(gpus) <= world_size else 0
        _describe(source, reports, gpus=len(gpus))


def divide_by_steps(workload: Workload, steps: int, said_by: str) -> Workload:
    """Return a workload of reports, whose calls are those of a whole job, with calls per training step.

    Args:
        workload: of `read`.
        steps: training steps that the job made, at least 1.
        said_by: who knows their number, for the note.
    """
    return workload.over_steps(
        steps,
        f"the whole job counts, divided by its {steps} steps ({said_by}): calls before the first step and between "
        "others, such as those of set-up, evaluation and checkpoints, are in it",
    )


def read_reports(documents: Iterable[Document]) -> tuple[CommunicatorReport, ...]:
    """Return the reports in some documents, ordered by process and communicator.

    Raises:
        TraceError: damaged, of another format, or given twice.
    """
    reports: dict[tuple[Any, ...], CommunicatorReport] = {}
    for document in documents:
        report: CommunicatorReport | None = None
        for row in _read_rows(document):
            if "ncclt_plugin_report" in row:
                report = CommunicatorReport(head=_check_head(row, document.label), label=document.label)
                key = (*report.process, report.head["number"], report.head["started_us"])
                if key in reports:
                    hint = "is one a copy? give every file of one job once"
                    raise TraceError(f"{document.label} and {reports[key].label} are the same report", hint=hint)
                reports[key] = report
            elif report is None:
                break
            else:
                _add_row(report, row)
                check_bounded(len(report.calls), document.label)
        if report is None:
            hint = "record with NCCLT_PLUGIN_REPORT=FOLDER"
            raise TraceError(f"{document.label} does not begin like a report of the plugin", hint=hint)
    return tuple(reports[key] for key in sorted(reports))


def _read_rows(document: Document) -> Iterator[dict[str, Any]]:
    for line in lines(document):
        row = parse_json(line)
        if not isinstance(row, dict):
            hint = "copy the file again; it is written whole"
            raise TraceError(f"{document.label} has a line that is not a record of the plugin", hint=hint)
        yield row


def _check_head(row: dict[str, Any], label: str) -> dict[str, Any]:
    if (version := row["ncclt_plugin_report"]) != _FORMAT:
        newer = f"is newer than {_FORMAT}, the newest that ncclt knows"
        reason = newer if (parse_int(version) or 0) > _FORMAT else f"is not known: ncclt reads {_FORMAT}"
        raise TraceError(f"{label}: its format {version!r} {reason}", hint="update ncclt")
    numbers = {key: parse_int(row.get(key)) for key in ("pid", "number", "ranks", "nodes", "started_us")}
    numbers["launch_rank"] = parse_int(row.get("launch_rank"), least=-1)
    words = ("host", "communicator", "table", "fnv1a", "not_in_use", "nccl")
    is_damaged = None in numbers.values() or any(not isinstance(row.get(key), str) for key in words)
    if is_damaged or not 0 < (numbers["ranks"] or 0) <= MOST_RANKS:
        raise TraceError(f"the first line of {label} is damaged", hint="copy the file again")
    return {**row, **numbers}


def _add_row(report: CommunicatorReport, row: Mapping[str, Any]) -> None:
    collective, calls = _TUNABLE.get(str(row.get("collective"))), parse_int(row.get("calls"))
    if collective is None or not calls:
        raise TraceError(f"{report.label} has a line without collective or calls", hint="copy the file again")
    size = parse_int(row.get("size_bytes"))
    if size is None:
        report.uncounted += calls
        return
    report.calls[collective, size] += calls
    outcome = {"applied": report.asked, "unavailable": report.refused}.get(str(row.get("outcome")))
    if outcome is not None:
        parts = [str(row.get("algorithm", "")).upper()[:24], str(row.get("protocol", "")).upper()[:24]]
        channels = parse_int(row.get("channels"))
        outcome[collective, size, "/".join([*parts, str(channels)] if channels else parts)] += calls


def _describe(source: Source, reports: Sequence[CommunicatorReport], *, gpus: int) -> None:
    """Fill in all but the calls."""
    heads, asked = [report.head for report in reports], Choices()
    for (collective, size, choice), calls in sum((report.asked for report in reports), Counter()).items():
        asked.add(collective, size, choice, calls)
    tables = {f"{head['table'] or 'without id'} ({head['fnv1a']})" for head in heads if not head["not_in_use"]}
    nodes = (int(head["nodes"]) for head in heads if head["ranks"] == source.world_size)
    source.detail["nccl_version"] = join_distinct(sorted(str(head["nccl"]) for head in heads))
    source.detail["nodes"] = str(max(nodes, default=""))
    source.detail["tables"] = ", ".join(sorted(tables))
    source.detail["asked_for"] = asked.text()
    source.created = format_day(min(int(head["started_us"]) for head in heads) / 1e6)
    source.ranks = {int(head["launch_rank"]) for head in heads} - {-1}
    source.notes += [
        f"NCCL gives a tuner no dtype: messages are counted in bytes, as {UNKNOWN_DTYPE}",
        "send_recv, all_to_all, symmetric-memory and copy-engine kernels never reach a tuner",
        "calls replayed by a CUDA graph count once, when captured",
        "calls of one kind in one group, with sizes within four times of each other, count once with their summed size",
    ]
    if len(tables) > 1:
        source.notes.append(f"the ranks had different tables: {source.detail['tables']}")
    if uncounted := sum(report.uncounted for report in reports):
        source.notes.append(f"{uncounted} calls came after the plugin's counters were full: their sizes are unknown")
    if not all(head.get("finished", True) for head in heads):
        source.notes.append("some communicators were open when their process ended")
    source.notes += largest_group_notes(gpus, source.world_size)
