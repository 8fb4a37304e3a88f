"""The trials of a study as a file: read and written in parts, however many there are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence

from ncclt.core.message import Message
from ncclt.core.study import Study, Trial
from ncclt.store.store import Store
from ncclt.store.trials import TrialFilter
from ncclt_api.documents import trial_document
from ncclt_api.text import readable

_AT_ONCE = 500

_COLUMNS = (
    "study",
    "label",
    "trial",
    "phase",
    "arm",
    "block",
    "setting",
    "repeat",
    "outcome",
    "time_per_step_us",
    "wall_s",
    "started",
    "place",
    "collective",
    "dtype",
    "size_bytes",
    "group_size",
    "spans_nodes",
    "calls_per_step",
    "time_us",
    "busbw_gbps",
    "wrong",
    "interpolated",
    "samples_us",
    "detail",
    "commands",
)


def trials_as_json(store: Store, study: Study, only: TrialFilter) -> Iterator[str]:
    """Yield one JSON object with the trials that a filter lets through, by number, with their measurements."""
    head = readable({"study": study.id, "name": study.name, "simulated": study.simulated, "label": study.label})
    yield json.dumps(head)[:-1] + ', "trials": ['
    between = "\n"
    for part in _parts(store, study, only):
        for trial in part:
            document = trial_document(trial, study.cluster).model_dump(mode="json")
            yield between + json.dumps(document | {"commands": readable(trial.result.commands)})
            between = ",\n"
    yield "\n]}\n"


def trials_as_csv(store: Store, study: Study, only: TrialFilter) -> Iterator[str]:
    """Yield CSV with a row per message of each trial; a trial that measured none has one row."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\r\n")
    rows.writerow(_COLUMNS)
    calls = {one.message: one.calls_per_step for one in study.workload.messages}
    for part in _parts(store, study, only):
        for trial in part:
            rows.writerows(_rows(study, trial, calls))
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _parts(store: Store, study: Study, only: TrialFilter) -> Iterator[Sequence[Trial]]:
    skip = 0
    while items := store.trials.select(study.id, only, skip=skip, limit=_AT_ONCE).items:
        yield store.trials.with_measurements(study.id, [item.trial for item in items])
        skip += len(items)


def _rows(study: Study, trial: Trial, calls: Mapping[Message, float]) -> Iterator[list[object]]:
    result = trial.result
    head = [
        study.id,
        _cell(study.label),
        trial.number,
        trial.phase.value,
        trial.arm.value if trial.arm else "",
        trial.block,
        _cell(trial.label),
        trial.repeat,
        result.outcome.value,
        trial.score_us,
        result.wall_s,
        _cell(trial.started),
        _cell(result.place),
    ]
    tail = [_cell(result.detail), _cell("\n".join(result.commands))]
    for one in result.measurements:
        message = one.message
        samples = " ".join(map(repr, one.samples_us))
        yield [
            *head,
            message.collective.value,
            _cell(message.dtype),
            message.size_bytes,
            message.group_size,
            message.spans_nodes,
            calls.get(message, ""),
            one.time_us,
            one.busbw_gbps,
            one.wrong,
            one.interpolated,
            samples,
            *tail,
        ]
    if not result.measurements:
        yield [*head, *[""] * 11, *tail]


def _cell(text: str) -> str:
    """Return a text that a spreadsheet does not read as a formula (owasp.org, CSV Injection)."""
    shown: str = readable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t", "\r")) else shown
