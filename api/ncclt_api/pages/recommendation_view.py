"""The content of the page of one revision: how it is used, where it is valid, its life, and what it changes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ncclt.core.recheck import Recheck
from ncclt.core.recommendation import Recommendation
from ncclt.core.revision import Action, HistoryEvent, RevisionState, RevisionStatus
from ncclt.core.rollout import RollOut, RollOutState
from ncclt.deliver.render.delivery import by_table, by_variables
from ncclt.deliver.render.formats import FORMATS, TABLE_FORMATS, render
from ncclt.deliver.use import DeliveredForm, job_options, use_of
from ncclt.errors import NccltError
from ncclt.prove.rollout import RollOutVerdict
from ncclt_api.pages.compare_view import Compared, CompareRow, compare_view
from ncclt_api.pages.home_view import ShownGain, gain_of
from ncclt_api.pages.wording import format_age

_FOR: dict[str, tuple[str, str]] = {
    "export": ("sh, bash, zsh", 'eval "$(ncclt env {job})"'),
    "dotenv": ("docker run --env-file, compose", "ncclt env {job} --format dotenv > nccl.env"),
    "json": ("programs", "ncclt env {job} --format json"),
    "nccl-conf": ("NCCL itself: NCCL_CONF_FILE, ~/.nccl.conf", "ncclt env {job} --format nccl-conf > nccl.conf"),
    "tuner-csv": ("ncclt's tuner plugin", "ncclt env {job} --format tuner-csv > table.csv"),
    "nvidia-csv": ("the example plugin of NVIDIA", "ncclt env {job} --format nvidia-csv > table.csv"),
    "rccl-csv": ("RCCL's tuner plugin", "ncclt env {job} --format rccl-csv > table.csv"),
    "ncclx": ("NCCLX", "ncclt env {job} --format ncclx"),
    "slurm-taskprolog": ("srun --task-prolog", "ncclt env {job} --format slurm-taskprolog --output prolog.sh"),
    "pyxis": ("srun with containers", 'eval "$(ncclt env {job} --format pyxis)" && srun $NCCLT_PYXIS'),
    "mpirun-x": ("Open MPI", "mpirun $(ncclt env {job} --format mpirun-x)"),
    "docker-env": ("docker run, podman run", "docker run $(ncclt env {job} --format docker-env)"),
    "configmap": ("Kubernetes", "ncclt env {job} --format configmap | kubectl apply -f -"),
    "trainjob-env": ("Kubeflow TrainJob", "ncclt env {job} --format trainjob-env"),
    "cloudai": ("CloudAI", "ncclt env {job} --format cloudai >> test.toml"),
}
"""Format -> who reads it, and how it is fetched."""

_ACTIONS: dict[str, tuple[str, str]] = {
    "approve": ("Approve", "Give it to jobs, as the rules of the cluster say, or to a share of them."),
    "activate": ("Activate", "Give it to all jobs now, also in the middle of its roll-out."),
    "rollback": ("Roll back", "Make this revision active again."),
    "pin": ("Pin", "Keep jobs at this revision, whatever is published later."),
    "unpin": ("Unpin", "Let later revisions replace it again."),
    "stale": ("Mark stale", "Serve it to no job until ncclt recheck finds that it holds."),
    "retire": ("Retire", "Give it to no job any more; jobs return to the NCCL default."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One format.

    Attributes:
        format: as `ncclt env --format` names it.
        reader: who reads it.
        delivers: `table`, `variables` or `both`.
        command: to type; empty where it would set nothing.
        text: what that gives.
        why: why it sets nothing; empty where it sets something.
    """

    format: str
    reader: str
    delivers: str
    command: str = ""
    text: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionForm:
    """Something that may be done to the revision in its state.

    Attributes:
        verb: last part of the address that the form is sent to.
        word, sentence: what it does.
        needs_why: a reason has to be given.
    """

    verb: str
    word: str
    sentence: str
    needs_why: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """One revision for the same job, with its gain."""

    status: RevisionStatus
    age: str
    is_this: bool
    is_served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOutRow:
    """One roll-out with what its jobs show; `seen` is None once it has ended, and `reason` says how."""

    id: str
    percent: int
    loss_limit: float
    control: str
    state: RollOutState
    reason: str
    created: str
    ended: str
    seen: RollOutVerdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeFacts:
    """What the store knows of the life of a revision.

    Attributes:
        status: of the revision.
        revisions: all for the same job, newest first.
        events, rechecks: of the revision, newest first.
        rollouts: likewise, each with what its jobs show; None once it has ended.
        percent: of the jobs that get a candidate which is approved, by the rules of its cluster.
    """

    status: RevisionStatus
    revisions: Sequence[RevisionStatus]
    events: Sequence[HistoryEvent]
    rechecks: Sequence[Recheck]
    rollouts: Sequence[tuple[RollOut, RollOutVerdict | None]]
    percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationView:
    """The content of the page.

    Attributes:
        use: the form in which it is used best, with its command.
        snippets: every format; empty for a demonstration, and for a revision that is not served.
        served: id of the served revision; empty = none.
        approvals: newest first.
        differences: what it chooses otherwise than the served one; empty where it is that.
    """

    recommendation: Recommendation
    gain: ShownGain
    status: RevisionStatus
    use: DeliveredForm
    snippets: tuple[Snippet, ...]
    served: str
    revisions: tuple[RevisionRow, ...]
    approvals: tuple[HistoryEvent, ...]
    events: tuple[HistoryEvent, ...]
    rechecks: tuple[Recheck, ...]
    rollouts: tuple[RollOutRow, ...]
    differences: tuple[CompareRow, ...]
    actions: tuple[ActionForm, ...]
    percent: int

    @property
    def is_live(self) -> bool:
        """Return whether a roll-out is open, so that the page follows it."""
        return any(row.seen for row in self.rollouts)


def recommendation_view(
    one: Compared, served: Compared | None, life: LifeFacts, *, server: str, now: datetime
) -> RecommendationView:
    """Return the content of the page of a revision.

    Args:
        one: the revision with its study.
        served: the one that jobs are given; None = none.
        life: its life.
        server: address of the service for commands; empty = they name none.
        now: the time.
    """
    found = one.recommendation
    assert found is not None
    source = f" --server {shlex.quote(server)}" if server else ""
    used = served.recommendation.id if served and served.recommendation else ""
    differences: tuple[CompareRow, ...] = ()
    if served and used != found.id:
        compared = compare_view((served, one), now=now)
        differences = tuple(row for row in (*compared.facts, *compared.rules) if row.differs)
    return RecommendationView(
        recommendation=found,
        gain=gain_of(found, now=now),
        status=life.status,
        use=use_of(found, source=source),
        snippets=_snippets(found, source) if used == found.id and not (found.stale or found.label) else (),
        served=used,
        revisions=tuple(
            RevisionRow(
                status=row, age=format_age(row.created, now), is_this=row.id == found.id, is_served=row.id == used
            )
            for row in life.revisions
        ),
        approvals=tuple(event for event in life.events if event.action is Action.APPROVED),
        events=tuple(life.events),
        rechecks=tuple(life.rechecks),
        rollouts=roll_out_rows(life.rollouts),
        differences=differences,
        actions=_actions(life.status),
        percent=100 if any(one.state is RollOutState.WON for one, _ in life.rollouts) else life.percent,
    )


def roll_out_rows(rollouts: Sequence[tuple[RollOut, RollOutVerdict | None]]) -> tuple[RollOutRow, ...]:
    """Return the roll-outs of a revision; the open ones with what their jobs show now."""
    return tuple(
        RollOutRow(
            id=one.id,
            percent=one.percent,
            loss_limit=one.loss_limit,
            control=one.control,
            state=one.state,
            reason=one.reason,
            created=one.created,
            ended=one.ended,
            seen=seen,
        )
        for one, seen in rollouts
    )


def _snippets(found: Recommendation, source: str) -> tuple[Snippet, ...]:
    return tuple(_snippet(found, format, job_options(found, source=source)) for format in FORMATS)


def _snippet(found: Recommendation, format: str, job: str) -> Snippet:
    reader, command = _FOR[format]
    form = "both" if format == "json" else "table" if format in TABLE_FORMATS else "variables"
    try:
        if why := _nothing_in(found, form):
            return Snippet(format=format, reader=reader, delivers=form, why=why)
        text = render(found, format=format)
    except NccltError as error:  # a format that cannot express it says so
        return Snippet(format=format, reader=reader, delivers=form, why=error.message)
    return Snippet(format=format, reader=reader, delivers=form, command=command.replace("{job}", job), text=text)


def _nothing_in(found: Recommendation, form: str) -> str:
    """Return why a form sets nothing; empty where it sets something."""
    if found.table.effective.is_default and (found.variables is None or found.variables.effective.is_default):
        return "Keeping the NCCL default"
    if form == "variables" and not by_variables(found).variables:
        return "no policy that plain variables can express was proven: use the tuner table"
    if form == "table" and not by_table(found).rules:
        return "what was proven needs no table: use plain variables"
    return ""


def _actions(status: RevisionStatus) -> tuple[ActionForm, ...]:
    verbs = {
        RevisionState.CANDIDATE: ("approve", "activate", "retire"),
        RevisionState.ACTIVE: ("unpin", "stale") if status.pinned else ("pin", "stale", "retire"),
        RevisionState.STALE: ("unpin",) if status.pinned else ("retire",),
        RevisionState.RETIRED: ("rollback",),
    }[status.state]
    return tuple(
        ActionForm(verb=verb, word=_ACTIONS[verb][0], sentence=_ACTIONS[verb][1], needs_why=verb == "stale")
        for verb in verbs
    )
