"""Read the reports and logs of a job, and attest whether its recommendation took effect."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ncclt.core.attestation import Attestation, CallOutcome, DeliveredPolicy, Form, LogEvidence, Observed, ObservedCall
from ncclt.core.message import MOST_BYTES
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Recommendation
from ncclt.deliver.answer import answer_from_document, policy_from_answer
from ncclt.deliver.attest import OWN_LINE, attest, has_our_plugin
from ncclt.deliver.render.formats import env_document
from ncclt.errors import TraceError, UsageError
from ncclt.nccl.log.startup import LogReader
from ncclt.profile.nccl_calls import OPERATIONS
from ncclt.profile.readers.nccl_log import (
    Communicators,
    LogBook,
    NcclLogReader,
    check_own_process,
    full_size,
    join_communicators,
    read_log,
)
from ncclt.profile.readers.plugin_report import CommunicatorReport, PluginReportReader, read_reports
from ncclt.profile.source import check_readable, documents
from ncclt.profile.workload_builder import check_distinct

_VERSION = re.compile(r"\d+\.\d+\.\d+")

_MOST_OWN_LINES = 20
"""Most distinct lines kept: the plugin writes one per kind of communicator."""


def attest_files(paths: Sequence[Path], delivered: DeliveredPolicy, *, created: str) -> Attestation:
    """Attest whether what was delivered took effect in the job that wrote these files.

    Args:
        paths: reports of the plugin and logs of NCCL, of one job; may be empty.
        created: ISO time.

    Raises:
        TraceError: a file is missing, damaged, given twice, or neither a report nor a log.
    """
    observed = observe(paths)
    # Two jobs without any file must stay distinct.
    return attest(delivered, observed if paths else replace(observed, evidence=created), created=created)


def observe(paths: Sequence[Path]) -> Observed:
    """Read reports and logs of one job; which is which is recognised by content.

    Raises:
        TraceError: a file is missing, damaged, given twice, or neither a report nor a log.
    """
    check_distinct(paths)
    report_paths, logs = _sort_files(paths)
    reports = read_reports(d for path in report_paths for d in documents(path)) if report_paths else ()
    starts, own_lines = LogReader(), dict[str, None]()

    def watching(lines: Iterable[str], label: str) -> Iterator[str]:
        """Collect the starts of processes and the lines of our plugin, while another reader takes the lines."""
        for line in starts.watching(lines, label):
            if OWN_LINE in line and len(own_lines) < _MOST_OWN_LINES:
                own_lines[line[line.index(OWN_LINE) :].rstrip("\n")[:500]] = None
            yield line

    books = [read_log(document, watching) for path in logs for document in documents(path)]
    books.sort(key=lambda book: book.label)
    check_own_process(books)
    facts = starts.facts()
    variables: dict[str, dict[str, None]] = {}
    for process in facts.processes:
        for name in sorted(process.variables):
            variables.setdefault(name, {})[process.variables[name].value] = None
    hosts = {host for book in books for host, _pid in book.processes} | {str(report.head["host"]) for report in reports}
    plugin_lines = [line.value for process in facts.processes for line in process.plugins.values()]
    return Observed(
        sources=(*_report_sources(reports), *_log_sources(books)),
        calls=(*_report_calls(reports), *_log_calls(books)),
        variables={name: tuple(values) for name, values in variables.items()},
        tells_variables=bool(variables),
        tuner_lines=(*own_lines, *dict.fromkeys(line for line in plugin_lines if line.startswith("TUNER"))),
        p2p_chunks=facts.p2p_chunks,
        hosts=len(hosts),
        notes=tuple(_notes(reports, books)),
        evidence=_digest(paths),
    )


def policy_from_recommendation(recommendation: Recommendation, form: Form) -> DeliveredPolicy:
    """Return the policy that a recommendation delivers in one form.

    Raises:
        UsageError: nothing is delivered in this form, so nothing can take effect.
        SettingError: the policy cannot be compiled for this NCCL.
    """
    policy_verdict = recommendation.table if form is Form.TABLE else recommendation.variables
    if policy_verdict is None or policy_verdict.effective.is_default:
        raise UsageError(
            f"the recommendation {recommendation.id} delivers nothing as {form}: keeping the NCCL default",
            hint="if the job got the other form, name it with --form",
        )
    # What `ncclt run` hands over is read from the same document.
    return policy_from_answer(answer_from_document(env_document(recommendation)), form)


def job_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a job in its folder, without empty ones and reports that a killed process left unfinished."""
    written = (path for path in folder.iterdir() if path.is_file() and path.suffix != ".part")
    return tuple(sorted(path for path in written if path.stat().st_size))


def reported_tables(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the ids of the recommendations named in the plugin's reports among some files.

    Raises:
        TraceError: as for `observe`.
    """
    paths, _logs = _sort_files(paths)
    reports = read_reports(d for path in sorted(paths) for d in documents(path)) if paths else ()
    return tuple(dict.fromkeys(table for report in reports if (table := str(report.head["table"]))))


def find_form(paths: Sequence[Path]) -> Form:
    """Return the form in which a job was given its policy, according to its files.

    Raises:
        TraceError: as for `observe`.
    """
    observed = observe(paths)
    has_report = any(source.kind == "plugin-report" for source in observed.sources)
    return Form.TABLE if has_report or has_our_plugin(observed.tuner_lines) else Form.VARIABLES


def _digest(paths: Sequence[Path]) -> str:
    """Return a hash of the files' content, independent of their names and order."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:32]


def _sort_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    reports, logs = [], []
    for path in paths:
        check_readable(path)
        if PluginReportReader().recognises(path):
            reports.append(path)
        elif NcclLogReader().recognises(path):
            logs.append(path)
        else:
            raise TraceError(
                f"{path} is neither a report of the plugin nor a log of NCCL",
                hint="name the files that NCCLT_PLUGIN_REPORT or NCCL_DEBUG_FILE left",
            )
    return reports, logs


def _report_sources(reports: Sequence[CommunicatorReport]) -> list[LogEvidence]:
    heads = Counter(
        LogEvidence(
            kind="plugin-report",
            nccl_version=str(report.head["nccl"]),
            table=str(report.head["table"]),
            checksum=str(report.head["fnv1a"]),
            not_in_use=str(report.head["not_in_use"]),
            ranks=int(report.head["ranks"]),
            nodes=int(report.head["nodes"]),
        )
        for report in reports
    )
    ordered = sorted(heads, key=lambda head: (-head.ranks, head.nodes, head.table, head.not_in_use))
    return [replace(head, count=heads[head]) for head in ordered]


def _log_sources(books: Sequence[LogBook]) -> list[LogEvidence]:
    """Return the logs by version, which one process of a host or job prints and which applies to the others."""
    if not books:
        return []
    matches = [_VERSION.match(version) for book in books for version in book.versions]
    versions = sorted({match[0] for match in matches if match}) or [""]
    processes = max(1, len({process for book in books for process in book.processes}))
    return [LogEvidence(kind="nccl-log", nccl_version=version, count=processes) for version in versions]


def _report_calls(reports: Sequence[CommunicatorReport]) -> Iterator[ObservedCall]:
    for report in reports:
        unmatched, call = Counter(report.calls), partial(ObservedCall, group_size=int(report.head["ranks"]))
        for outcome, uses in ((CallOutcome.APPLIED, report.asked), (CallOutcome.UNAVAILABLE, report.refused)):
            for (collective, size, choice), calls in uses.items():
                unmatched[collective, size] -= calls
                asked = partial(call, choice=choice.lower(), outcome=outcome)
                yield asked(collective=collective, size_bytes=size, calls=calls)
        call = partial(call, choice="", outcome=CallOutcome.UNMATCHED, remark=str(report.head["not_in_use"]))
        for (collective, size), calls in unmatched.items():
            if calls > 0 and size > 0:
                yield call(collective=collective, size_bytes=size, calls=calls)


def _log_calls(books: Sequence[LogBook]) -> Iterator[ObservedCall]:
    comms: Communicators = join_communicators(books)
    for book in books:
        for line, calls in book.tunings.items():
            collective = OPERATIONS.get(line.operation)
            if collective is None or not collective.is_tunable or not 0 < int(line.size) <= MOST_BYTES:
                continue
            group, _spans = comms.group_decided_by(line.origin)
            size, complete = full_size(line, collective, group)
            yield ObservedCall(
                collective=collective,
                size_bytes=size if complete else 0,
                group_size=group,
                choice=line.choice.lower(),
                outcome=CallOutcome.CHOSEN,
                calls=calls,
            )


def _notes(reports: Sequence[CommunicatorReport], books: Sequence[LogBook]) -> Iterator[str]:
    if reports:
        yield "reports show the plugin's requests; NCCL's TUNING lines show its choices"
        uncounted = sum(report.uncounted for report in reports)
        if uncounted:
            yield f"{count_noun(uncounted, 'call')} not judged: the plugin's counters were full"
    if books:
        yield "TUNING lines are of rank 0 of each communicator"
        unnamed = sum(calls for book in books for line, calls in book.tunings.items() if not line.operation)
        if unnamed:
            yield f"{unnamed} TUNING lines do not name the collective (NCCL 2.20 to 2.22): they are not judged"
        if not any(book.tunings for book in books):
            yield "the log has no TUNING lines: record with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"
        if any(book.graphs for book in books):
            yield "the job used CUDA graphs: their calls are logged once, when captured"
    if reports or books:
        yield "calls of one group with sizes within four times of each other are decided once, with their summed size"
