"""Variant of a roll-out for one job, by the roll-out and the job's name.

Most jobs are drawn into no arm and get the control, whatever changes. A job in the interval of an arm gets what the
store notes at its first request, so all of its ranks get the same, whichever replica of a service they ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ncclt.core.policy import Policy
from ncclt.core.recommendation import SHAPE_PARTS, Decision, PolicyVerdict, Recommendation, Request, select
from ncclt.core.rollout import JobStart, Reason, RolledOut, RollOut, Variant, find_same_start
from ncclt.core.ticket import TICKET_LIFE_S, Ticket, is_job_name, shorten_name, sign_ticket
from ncclt.errors import StoreError
from ncclt.user_dirs import recorded_tables

if TYPE_CHECKING:
    from ncclt.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRevision:
    """Revision served to one job, with its variant and reason.

    Attributes:
        recommendation: to be rendered.
        variant: which one it is.
        reason: why.
        rollout: id of the roll-out that the job is part of, also as one that keeps what it had; empty = none.
        running: numbers of its arms that were served then.
    """

    recommendation: Recommendation
    variant: Variant = Variant.ACTIVE
    reason: Reason = Reason.TARGETING_MATCH
    rollout: str = ""
    running: tuple[int, ...] = ()

    @property
    def revision_id(self) -> str:
        """Return the id of the revision that the job is given; empty = none."""
        return "" if self.variant is Variant.DEFAULT else self.recommendation.id

    def to_document(self) -> dict[str, str]:
        """Return its entries in an answer."""
        return {"variant": self.variant.value, "reason": self.reason.value, "rollout": self.rollout}


Claim = Callable[[RollOut, str], JobStart | None]
"""Notes that a job starts in a roll-out, and returns its start: an earlier request's of the same start, else a new one.
None = the job has no part, and gets the control: without a ticket, a hang would go unseen."""


def choose_variant(
    chosen: Recommendation, rolled_out: Iterable[RolledOut], job: str, *, delivery: bool = True, claim: Claim
) -> ServedRevision:
    """Choose the revision for a job.

    Args:
        chosen: as of `select_fitting`; where none is active, the one that is rolled out.
        rolled_out: the open roll-outs of its pair.
        job: name of the job, equal in all of its processes; empty = not known: it has no part in a roll-out.
        delivery: the rules of its cluster allow delivery.
        claim: asked once, for a job that can have a part.
    """
    if not delivery:
        why = f"delivery on {chosen.cluster} is switched off"
        return ServedRevision(recommendation=_held_back(chosen, why), variant=Variant.DEFAULT, reason=Reason.DISABLED)
    for rollout, candidates in rolled_out:
        if chosen.id not in ((rollout.control,) if rollout.control else (candidate.id for candidate in candidates)):
            continue
        number = rollout.find_arm(job)
        if number is not None and candidates[number].stale and rollout.control:
            return ServedRevision(recommendation=chosen, reason=Reason.STALE)
        start = claim(rollout, job) if is_job_name(job) else None
        part, running = (start.rollout, start.running) if start else ("", ())
        revision = start.recommendation if start else rollout.control
        if arm := next((candidate for candidate in candidates if candidate.id == revision), None):
            return ServedRevision(recommendation=arm, variant=Variant.CANDIDATE, rollout=part, running=running)
        if not rollout.control:
            held_back = _held_back(chosen, "this job is a control of a roll-out")
            return ServedRevision(
                recommendation=held_back, variant=Variant.DEFAULT, reason=Reason.DEFAULT, rollout=part, running=running
            )
        return ServedRevision(recommendation=chosen, rollout=part, running=running)
    return ServedRevision(recommendation=chosen)


def build_ticket(answer: ServedRevision, job: str, *, issued_s: float) -> Ticket | None:
    """Return the ticket that goes with an answer; None where the name of the job is not known.

    Args:
        issued_s: Unix time.
    """
    if not is_job_name(job):
        return None
    recommendation = answer.recommendation
    return Ticket(
        job=shorten_name(job),
        cluster=shorten_name(recommendation.cluster),
        model=shorten_name(recommendation.model),
        **{part: getattr(recommendation.fingerprint, part) for part in SHAPE_PARTS},
        recommendation=answer.revision_id,
        variant=answer.variant,
        rollout=answer.rollout,
        running=answer.running,
        issued_s=issued_s,
        expires_s=issued_s + TICKET_LIFE_S,
    )


def claim_stored(store: Store, rollout: RollOut, job: str, *, now_s: float, has_ticket: bool) -> JobStart | None:
    """Return the start of a job from the store of its roll-out, as of `Claim`.

    Args:
        rollout: open.
        now_s: Unix time.
        has_ticket: the answer has one; without it the start must be known from another answer.
    """
    if has_ticket:
        return store.revisions.claim_start(rollout.id, job, issued_s=now_s)
    return find_same_start(store.revisions.find_start(rollout.id, job), now_s)


def serve_from_store(url: str | None, request: Request, *, with_ticket: bool) -> tuple[ServedRevision, dict[str, str]]:
    """Choose the revision for a job from a store; return it with the entries of the answer that are the job's own.

    Where a start cannot be noted the job has no part in a roll-out: one that is not counted as started may not report.

    Args:
        url: of the store; None = the default one.
        with_ticket: issue a ticket, which a part in a roll-out needs.

    Raises:
        NoRecommendationError: nothing fits; StaleRecommendationError: what fits is stale.
        NotFoundError: nothing was ever published for the two names, and one of them is unknown.
        UsageError, StoreError: as for `ncclt.store.published`.
    """
    from ncclt.store import known_names, open_store, published, rolled_out, rules_of, ticket_secret

    recommendations = published(url, cluster=request.cluster, model=request.model)
    if not recommendations:
        known_names(url).require(cluster=request.cluster, model=request.model)
    delivery = rules_of(url, cluster=request.cluster).delivery
    running = rolled_out(url, cluster=request.cluster, model=request.model)
    issued_s = time.time()

    def claim(rollout: RollOut, job: str) -> JobStart | None:
        nonlocal issued_s
        if not with_ticket and rollout.find_arm(job) is None:
            return None
        try:
            with open_store(url, migrate=False) as store:
                start = claim_stored(store, rollout, job, now_s=issued_s, has_ticket=with_ticket)
        except StoreError:
            return None
        issued_s = start.issued_s if start else issued_s
        return start

    answer = choose_variant(
        select_fitting(recommendations, request), running, request.job, delivery=delivery, claim=claim
    )
    ticket = build_ticket(answer, request.job, issued_s=issued_s) if with_ticket else None
    return answer, {} if ticket is None else {"ticket": sign_ticket(ticket, ticket_secret(url))}


def select_fitting(published: Iterable[Recommendation], request: Request) -> Recommendation:
    """Return the recommendation that fits a job exactly.

    Raises:
        NoRecommendationError: nothing fits; StaleRecommendationError: what fits is stale.
    """
    candidates = tuple(published)
    return select(candidates, request, is_recorded=not candidates and request.cluster in recorded_tables())


def _held_back(recommendation: Recommendation, why: str) -> Recommendation:
    """Return a recommendation that delivers nothing: the job keeps its own settings."""
    verdict = replace(recommendation.table.verdict, decision=Decision.KEEP_DEFAULT, reason=why)
    nothing = PolicyVerdict(policy=Policy(), verdict=verdict)
    return replace(recommendation, table=nothing, variables=recommendation.variables and nothing)
