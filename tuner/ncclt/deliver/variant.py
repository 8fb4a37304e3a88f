"""Variant of a roll-out for one job: a function of the roll-out and the job's name alone.

No rank, time or counter has a part in it, so all ranks of a job get the same, whichever replica of a service they ask.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Request, select
from ncclt.core.rollout import JobStart, Reason, RollOut, Variant
from ncclt.core.ticket import TICKET_LIFE_S, Ticket, is_job_name, shorten_name, sign_ticket
from ncclt.errors import StoreError
from ncclt.user_dirs import recorded_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRevision:
    """Revision served to one job, with its variant and reason.

    Attributes:
        recommendation: to be rendered.
        variant: which one it is.
        reason: why.
        rollout: id of the roll-out that the job is part of, also as one that keeps what it had; empty = none.
    """

    recommendation: Recommendation
    variant: Variant = Variant.ACTIVE
    reason: Reason = Reason.TARGETING_MATCH
    rollout: str = ""

    @property
    def revision_id(self) -> str:
        """Return the id of the revision that the job is given; empty = the NCCL default."""
        return "" if self.variant is Variant.DEFAULT else self.recommendation.id

    def to_document(self) -> dict[str, str]:
        """Return its entries in an answer."""
        return {"variant": self.variant.value, "reason": self.reason.value, "rollout": self.rollout}


def choose_variant(
    chosen: Recommendation, rolled_out: Iterable[tuple[RollOut, Recommendation]], job: str, *, delivery: bool = True
) -> ServedRevision:
    """Choose the revision for a job.

    Args:
        chosen: as of `select_fitting`; where none is active, the one that is rolled out.
        rolled_out: the running roll-outs of its pair, each with its revision.
        job: name of the job, equal in all of its processes; empty = not known: it has no part in a roll-out.
        delivery: the rules of its cluster allow delivery.
    """
    if not delivery:
        why = f"keeping the NCCL default: delivery on {chosen.cluster} is switched off"
        return ServedRevision(recommendation=_held_back(chosen, why), variant=Variant.DEFAULT, reason=Reason.DISABLED)
    for rollout, candidate in rolled_out:
        if chosen.id != (rollout.control or rollout.recommendation):
            continue
        if candidate.stale and rollout.control:
            return ServedRevision(recommendation=chosen, reason=Reason.STALE)
        variant, part = rollout.variant(job), rollout.id if job else ""
        if variant is Variant.CANDIDATE:
            return ServedRevision(recommendation=candidate, variant=variant, rollout=part)
        if variant is Variant.DEFAULT:
            why = "keeping the NCCL default: this job is a control of a roll-out"
            held_back = _held_back(candidate, why)
            return ServedRevision(recommendation=held_back, variant=variant, reason=Reason.DEFAULT, rollout=part)
        return ServedRevision(recommendation=chosen, rollout=part)
    return ServedRevision(recommendation=chosen)


def build_ticket(answer: ServedRevision, job: str, *, issued_s: float) -> Ticket | None:
    """Return the ticket that goes with an answer; None where the name of the job is not known.

    Args:
        answer: for the job.
        job: its name.
        issued_s: Unix time.
    """
    if not is_job_name(job):
        return None
    found = answer.recommendation
    return Ticket(
        job=shorten_name(job),
        cluster=shorten_name(found.cluster),
        model=shorten_name(found.model),
        nodes=found.fingerprint.nodes,
        gpus_per_node=found.fingerprint.gpus_per_node,
        nccl_version=found.fingerprint.nccl_version,
        recommendation=answer.revision_id,
        variant=answer.variant,
        rollout=answer.rollout,
        issued_s=issued_s,
        expires_s=issued_s + TICKET_LIFE_S,
    )


def issue_ticket(url: str | None, answer: ServedRevision, job: str) -> dict[str, str]:
    """Issue the ticket of an answer from a store, as its entry in the answer, and note a start in a roll-out.

    Where the start cannot be noted there is no ticket: a job that is not counted as started may not report either.

    Raises:
        UsageError, StoreError: as for `ncclt.store.published`.
    """
    from ncclt.store import open_store, ticket_secret

    ticket = build_ticket(answer, job, issued_s=time.time())
    if ticket is None:
        return {}
    if answer.rollout:
        try:
            with open_store(url, migrate=False) as store:
                store.revisions.add_job_starts([build_job_start(answer, job, issued_s=ticket.issued_s)])
        except StoreError:
            return {}
    return {"ticket": sign_ticket(ticket, ticket_secret(url))}


def build_job_start(answer: ServedRevision, job: str, *, issued_s: float) -> JobStart:
    """Return the start of a job of a roll-out."""
    return JobStart(rollout=answer.rollout, job=job, recommendation=answer.revision_id, issued_s=issued_s)


def serve_from_store(url: str | None, request: Request) -> ServedRevision:
    """Choose the revision for a job from a store.

    Raises:
        NoRecommendationError: nothing fits; StaleRecommendationError: what fits is stale.
        NotFoundError: nothing was ever published for the two names, and one of them is unknown.
        UsageError, StoreError: as for `ncclt.store.published`.
    """
    from ncclt.store import known_names, published, rolled_out, rules_of

    found = published(url, cluster=request.cluster, model=request.model)
    if not found:
        known_names(url).require(cluster=request.cluster, model=request.model)
    delivery = rules_of(url, cluster=request.cluster).delivery
    running = rolled_out(url, cluster=request.cluster, model=request.model)
    return choose_variant(select_fitting(found, request), running, request.job, delivery=delivery)


def select_fitting(published: Iterable[Recommendation], request: Request) -> Recommendation:
    """Return the recommendation that fits a job exactly.

    Raises:
        NoRecommendationError: nothing fits; StaleRecommendationError: what fits is stale.
    """
    candidates = tuple(published)
    return select(candidates, request, is_recorded=not candidates and request.cluster in recorded_tables())


def _held_back(recommendation: Recommendation, why: str) -> Recommendation:
    """Return a recommendation that delivers nothing: the job keeps the NCCL default."""
    verdict = replace(recommendation.table.verdict, decision=Decision.KEEP_DEFAULT, reason=why)
    nothing = PolicyVerdict(policy=Policy(), verdict=verdict)
    return replace(recommendation, table=nothing, variables=recommendation.variables and nothing)
