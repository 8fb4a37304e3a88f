"""The trials of a study: the list with its filters, the page of one trial, and the files of all of them."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ncclt.core.trial import Measurement, Outcome
from ncclt.errors import UsageError
from ncclt.store.store import Store
from ncclt.store.trials import Order, TrialFilter, TrialPart
from ncclt_api.access import needs
from ncclt_api.dependencies import MOST_NUMBER, CurrentStore, CurrentStudy, StrictQuery
from ncclt_api.json_models import trial_document
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Line
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router
from ncclt_api.pages.wording import NONE, describe_message, format_us
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
        chosen = self.model_dump(include=set(TrialChoice.model_fields), exclude_defaults=True) | changes
        text = urlencode({name: value for name, value in chosen.items() if value}, errors="replace")
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
    keys = {message_key(row.message): row.message for row in study.workload.messages}
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
        messages=[(message_key(row.message), describe_message(row.message)) for row in study.workload.messages],
    )


_AT_ONCE = 500

_TRIAL_COLUMNS: Mapping[str, Callable[[Study, Trial], object]] = {
    "study": lambda study, _: study.id,
    "label": lambda study, _: study.label,
    "trial": lambda _, trial: trial.number,
    "phase": lambda _, trial: trial.phase.value,
    "arm": lambda _, trial: trial.arm.value if trial.arm else "",
    "block": lambda _, trial: trial.block,
    "setting": lambda _, trial: trial.label,
    "repeat": lambda _, trial: trial.repeat,
    "outcome": lambda _, trial: trial.result.outcome.value,
    "time_per_step_us": lambda _, trial: trial.score_us,
    "wall_s": lambda _, trial: trial.result.wall_s,
    "started": lambda _, trial: trial.started,
    "place": lambda _, trial: trial.result.place,
}
_MESSAGE_COLUMNS: Mapping[str, Callable[[Measurement, Mapping[Message, float]], object]] = {
    "collective": lambda row, _: row.message.collective.value,
    "dtype": lambda row, _: row.message.dtype,
    "size_bytes": lambda row, _: row.message.size_bytes,
    "group_size": lambda row, _: row.message.group_size,
    "spans_nodes": lambda row, _: row.message.spans_nodes,
    "calls_per_step": lambda row, calls: calls.get(row.message, ""),
    "time_us": lambda row, _: row.time_us,
    "busbw_gbps": lambda row, _: row.busbw_gbps,
    "wrong": lambda row, _: row.wrong,
    "interpolated": lambda row, _: row.interpolated,
    "measured_bytes": lambda row, _: row.measured_bytes,
    "samples_us": lambda row, _: " ".join(map(repr, row.samples_us)),
}
_OUTPUT_COLUMNS: Mapping[str, Callable[[Trial], object]] = {
    "detail": lambda trial: trial.result.detail,
    "commands": lambda trial: "\n".join(trial.result.commands),
}


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
    rows.writerow([*_TRIAL_COLUMNS, *_MESSAGE_COLUMNS, *_OUTPUT_COLUMNS])
    calls = {row.message: row.calls_per_step for row in study.workload.messages}
    for part in _parts(store, study, only):
        for trial in part:
            rows.writerows(_build_csv_rows(study, trial, calls))
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _parts(store: Store, study: Study, only: TrialFilter) -> Iterator[Sequence[Trial]]:
    skip = 0
    while items := store.trials.select(study.id, only, skip=skip, limit=_AT_ONCE).items:
        yield store.trials.with_measurements(study.id, [item.trial for item in items])
        skip += len(items)


def _build_csv_rows(study: Study, trial: Trial, calls: Mapping[Message, float]) -> Iterator[list[object]]:
    head = [_protect(read(study, trial)) for read in _TRIAL_COLUMNS.values()]
    tail = [_protect(read(trial)) for read in _OUTPUT_COLUMNS.values()]
    for measurement in trial.result.measurements:
        yield [*head, *(_protect(read(measurement, calls)) for read in _MESSAGE_COLUMNS.values()), *tail]
    if not trial.result.measurements:
        yield [*head, *[""] * len(_MESSAGE_COLUMNS), *tail]


def _protect(cell: object) -> object:
    """Return a cell that a spreadsheet does not read as a formula (owasp.org, CSV Injection)."""
    if not isinstance(cell, str):
        return cell
    text: str = readable(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


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
    if all(len(measurement.samples_us) < 2 for measurement in measured):
        return None  # it would be a dot at 1 for each message
    points, rows = [], []
    for place, measurement in enumerate(measured, start=1):
        samples_us, median_us = measurement.samples_us, measurement.time_us
        label, count = describe_message(measurement.message), len(samples_us)
        # Dots of a strip stand side by side, in the order in which they were taken.
        points += [
            (
                place + 0.6 * (number + 0.5) / count - 0.3,
                sample_us / median_us if median_us else None,
                f"{label}: {format_us(sample_us)} µs",
            )
            for number, sample_us in enumerate(samples_us)
        ]
        spread = f"{100 * statistics.stdev(samples_us) / median_us:.1f} %" if count > 1 and median_us else NONE
        rows.append((label, str(count), *map(format_us, (min(samples_us), median_us, max(samples_us))), spread))
    return Chart(
        id="samples-chart",
        title="Samples by message",
        description="One dot per sample, relative to the median of its message; in the order of the table.",
        x=Axis("message", "count", low=0.5, high=len(measured) + 0.5),
        y=Axis("time / median", "ratio"),
        lines=[Line.through("sample", "policy", "dot", points)],
        table=ChartTable(("Message", "Samples", "Min µs", "Median µs", "Max µs", "Standard deviation"), rows),
    )
