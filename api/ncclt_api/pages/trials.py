"""The trials of a study: the list with its filters, the page of one trial, and the files of all of them."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from ncclt.core.algorithms import Algorithm
from ncclt.core.api_key import Role
from ncclt.core.message import Message
from ncclt.core.study import Phase, Study, Trial
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.store.store import Store
from ncclt.store.trials import Order, TrialFilter, TrialPart
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore, CurrentStudy, StrictQuery
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Line
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router
from ncclt_api.pages.wording import NONE, describe_message, format_us
from ncclt_api.schemas import trial_document
from ncclt_api.text import readable

router = page_router(dependencies=needs(Role.READ))

TRIALS_PER_PAGE = 50

MOST_REPEATS = 50
"""Other trials of a setting that the page of a trial lists."""


class TrialChoice(BaseModel):
    """Trials that a reader selected, as in the address; empty = all.

    Attributes:
        phase, outcome, algorithm: only trials of these.
        message: key of a message, as `message_key` writes it.
        sort: order of the rows.
        page: from 1; beyond the last means the last.
    """

    phase: Phase | Literal[""] = ""
    outcome: Outcome | Literal[""] = ""
    message: Annotated[str, Field(max_length=300)] = ""
    algorithm: Algorithm | Literal[""] = ""
    sort: Order = "number"
    page: Annotated[int, Field(ge=1, le=10**8)] = 1

    def query(self, **changes: Any) -> str:
        """Return it as the query of an address with some changes; empty parts are left out."""
        chosen: Mapping[str, Any] = {
            "phase": self.phase,
            "outcome": self.outcome,
            "message": self.message,
            "algorithm": self.algorithm,
            "sort": self.sort if self.sort != "number" else "",
            "page": self.page if self.page > 1 else "",
        }
        text = urlencode({name: value for name, value in {**chosen, **changes}.items() if value}, errors="replace")
        return f"?{text}" if text else ""


class ExportQuery(TrialChoice, StrictQuery):
    """Selection of trials, and file format."""

    format: Literal["csv", "json"] = "json"


@router.get("/studies/{id}/trials")
def export_trials(study: CurrentStudy, query: Annotated[ExportQuery, Query()], store: CurrentStore) -> Response:
    """Return all trials that match as a file."""
    write, kind = (trials_as_csv, "text/csv") if query.format == "csv" else (trials_as_json, "application/json")
    headers = {
        "Content-Disposition": f'attachment; filename="trials-{study.id}.{query.format}"',
        "Cache-Control": "private, no-cache",
    }
    return StreamingResponse(write(store, study, build_filter(study, query)), media_type=kind, headers=headers)


@router.get("/studies/{id}/trials/{number}")
def show_trial(
    study: CurrentStudy,
    number: Annotated[int, Path(ge=0, le=MOST_NUMBER)],
    query: Annotated[PageQuery, Query()],
    store: CurrentStore,
    page: CurrentPage,
) -> Response:
    """Show one trial."""
    trial = store.trials.get(study.id, number)
    measured = {row.message: row for row in trial.result.measurements}
    values: dict[str, Any] = {
        "study": study,
        "trial": trial,
        "messages": [row.message for row in study.workload.messages if not measured or row.message in measured],
        "repeats": store.trials.repeats(study.id, trial, limit=MOST_REPEATS) if trial.policy is None else (),
        "last": store.trials.select(study.id, TrialFilter(), limit=1).total - 1,
        "forcing": describe_forcing(study, trial),
        "samples": samples_chart(trial),
    }
    return page.write("trial.html", query, values, measured=measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    """A page of trials.

    Attributes:
        study: id of the study.
        part: its rows, and the numbers of trials.
        choice: selection of the reader.
        number, pages: this page and the last one, from 1.
        message: the selected message as text; empty = none.
        messages: key and text of each message of the workload.
    """

    study: str
    part: TrialPart
    choice: TrialChoice
    number: int
    pages: int
    message: str
    messages: Sequence[tuple[str, str]]

    @property
    def is_filtered(self) -> bool:
        """True where some trials are left out."""
        return bool(self.choice.query(sort="", page=""))

    def address(self, **changes: Any) -> str:
        """Return the address of the study with this list."""
        return f"/studies/{quote(self.study, safe='')}{self.choice.query(**changes, tab='trials')}"


def message_key(message: Message) -> str:
    """Return a message as a short text for an address."""
    place = {True: "across", False: "inside", None: ""}[message.spans_nodes]
    return f"{message.collective.value}-{message.dtype}-{message.size_bytes}-{message.group_size or ''}-{place}"


def build_filter(study: Study, choice: TrialChoice) -> TrialFilter:
    """Return the filter of the store for a selection.

    Raises:
        UsageError: the workload has no such message.
    """
    keys = {message_key(one.message): one.message for one in study.workload.messages}
    if choice.message and choice.message not in keys:
        raise UsageError("the workload has no such message", hint="select one in the list of trials")
    return TrialFilter(
        phase=choice.phase or None,
        outcome=choice.outcome or None,
        algorithm=choice.algorithm or None,
        message=keys.get(choice.message),
    )


def build_table(store: Store, study: Study, choice: TrialChoice) -> TrialTable:
    """Return the selected page of the trials of a study; raises as `build_filter` does."""
    only = build_filter(study, choice)

    def read(page: int) -> TrialPart:
        skip = (page - 1) * TRIALS_PER_PAGE
        return store.trials.select(study.id, only, order=choice.sort, skip=skip, limit=TRIALS_PER_PAGE)

    part = read(choice.page)
    pages = max(1, -(-part.matching // TRIALS_PER_PAGE))
    return TrialTable(
        study=study.id,
        part=part if choice.page <= pages else read(pages),
        choice=choice,
        number=min(choice.page, pages),
        pages=pages,
        message=describe_message(only.message) if only.message else "",
        messages=[(message_key(one.message), describe_message(one.message)) for one in study.workload.messages],
    )


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
    "measured_bytes",
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
            one.measured_bytes,
            samples,
            *tail,
        ]
    if not result.measurements:
        yield [*head, *[""] * 12, *tail]


def _cell(text: str) -> str:
    """Return a text that a spreadsheet does not read as a formula (owasp.org, CSV Injection)."""
    shown: str = readable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t", "\r")) else shown


def describe_forcing(study: Study, trial: Trial) -> str:
    """Return the means that forced the setting of a trial, as a sentence."""
    if study.label:
        return f"Nothing was launched: the times are {'simulated' if study.simulated else 'recorded'}."
    by = "the tuner plugin" if trial.result.by_plugin else "environment variables"
    ranks = "the ranks were already running" if trial.result.persistent else "the ranks were started for this trial"
    return f"Forced by {by}; {ranks}."


def samples_chart(trial: Trial) -> Chart | None:
    """Draw the samples of each message as a strip, relative to their median: one axis serves 4 KiB and 1 GiB."""
    measured = trial.result.measurements
    if all(len(one.samples_us) < 2 for one in measured):
        return None  # it would be a dot at 1 for each message
    x, y, notes, rows = [], [], [], []
    for place, one in enumerate(measured, start=1):
        label, count = describe_message(one.message), len(one.samples_us)
        # Dots of a strip stand side by side, in the order in which they were taken.
        x += [place + 0.6 * (at + 0.5) / count - 0.3 for at in range(count)]
        y += [sample / one.time_us if one.time_us else None for sample in one.samples_us]
        notes += [f"{label}: {format_us(sample)} µs" for sample in one.samples_us]
        spread = statistics.stdev(one.samples_us) / one.time_us if count > 1 and one.time_us else None
        least, most = min(one.samples_us), max(one.samples_us)
        share = f"{100 * spread:.1f} %" if spread is not None else NONE
        rows.append((label, str(count), format_us(least), format_us(one.time_us), format_us(most), share))
    dots = Line(label="sample", tone="policy", mark="dot", x=x, y=y, notes=notes)
    return Chart(
        id="samples-chart",
        title="Samples by message",
        description="One dot per sample, relative to the median of its message; in the order of the table.",
        x=Axis(label="message", unit="count", low=0.5, high=len(measured) + 0.5),
        y=Axis(label="time / median", unit="ratio"),
        lines=[dots],
        table=ChartTable(
            columns=("Message", "Samples", "Min µs", "Median µs", "Max µs", "Standard deviation"), rows=rows
        ),
    )
