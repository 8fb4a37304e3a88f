"""The list of trials on the page of a study: what was chosen, the links that choose otherwise, and one page of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Message, format_bytes
from ncclt.core.study import Phase, Study
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.store.store import Store
from ncclt.store.trials import ListedTrial, Order, TrialFilter

TRIALS_PER_PAGE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialChoice:
    """What a reader chose of the trials, as it stands in the address; empty = all.

    Attributes:
        phase, outcome, algorithm: only trials of these.
        message: key of a message, as `message_key` writes it.
        sort: by what, and from which end.
        page: from 1; beyond the last means the last.
    """

    phase: Phase | None = None
    outcome: Outcome | None = None
    message: str = ""
    algorithm: Algorithm | None = None
    sort: Order = "number"
    page: int = 1

    def query(self, **changes: Any) -> str:
        """Return it as the query of an address, with some of it changed; what is not chosen is left out."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTable:
    """A page of trials.

    Attributes:
        study: id of the study.
        items: the rows.
        number, pages: this page and how many there are, from 1.
        matching: number of trials that the filter lets through.
        total, failed: number of all trials, and of those that failed.
        choice: what was chosen.
        message: the message that was chosen, as text; empty = none.
        messages: key and text of each message of the workload.
    """

    study: str
    items: Sequence[ListedTrial]
    number: int
    pages: int
    matching: int
    total: int
    failed: int
    choice: TrialChoice
    message: str
    messages: Sequence[tuple[str, str]]

    @property
    def is_filtered(self) -> bool:
        """Return whether some trials are left out."""
        return bool(self.choice.query(sort="", page=""))

    def at(self, **changes: Any) -> str:
        """Return the query of this list with some of the choice changed."""
        return self.choice.query(**{"page": "", **changes})

    def address(self, **changes: Any) -> str:
        """Return the address of the study with this list."""
        return f"/studies/{quote(self.study, safe='')}{self.choice.query(**changes)}"


def message_key(message: Message) -> str:
    """Return a message as a short text for an address."""
    place = {True: "across", False: "inside", None: ""}[message.spans_nodes]
    return f"{message.collective.value}-{message.dtype}-{message.size_bytes}-{message.group_size or ''}-{place}"


def message_words(message: Message) -> str:
    """Return a message as text."""
    where = {True: " across nodes", False: " in a node", None: ""}[message.spans_nodes]
    ranks = f", {message.group_size} ranks" if message.group_size else ""
    return f"{message.collective.value} {format_bytes(message.size_bytes)} {message.dtype}{ranks}{where}"


def filter_of(study: Study, choice: TrialChoice) -> TrialFilter:
    """Return the filter of the store for a choice.

    Raises:
        UsageError: the workload has no such message.
    """
    keys = {message_key(one.message): one.message for one in study.workload.messages}
    if choice.message and choice.message not in keys:
        raise UsageError("the workload has no such message", hint="choose one in the list of trials")
    message = keys[choice.message] if choice.message else None
    return TrialFilter(phase=choice.phase, outcome=choice.outcome, algorithm=choice.algorithm, message=message)


def trial_table(store: Store, study: Study, choice: TrialChoice) -> TrialTable:
    """Return the chosen page of the trials of a study; raises as `filter_of` does."""
    only = filter_of(study, choice)
    page = choice.page
    part = store.trials.select(
        study.id, only, order=choice.sort, skip=(page - 1) * TRIALS_PER_PAGE, limit=TRIALS_PER_PAGE
    )
    pages = max(1, -(-part.matching // TRIALS_PER_PAGE))
    if page > pages:
        page = pages
        skip = (page - 1) * TRIALS_PER_PAGE
        part = store.trials.select(study.id, only, order=choice.sort, skip=skip, limit=TRIALS_PER_PAGE)
    return TrialTable(
        study=study.id,
        items=part.items,
        number=page,
        pages=pages,
        matching=part.matching,
        total=part.total,
        failed=part.failed,
        choice=choice,
        message=message_words(only.message) if only.message else "",
        messages=[(message_key(one.message), message_words(one.message)) for one in study.workload.messages],
    )
