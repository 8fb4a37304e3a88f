"""What one job is given while a revision is rolled out: a function of the roll-out and the job's name alone.

No rank, time or counter has a part in it, so all ranks of a job get the same, whichever replica of a service they ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Request, select
from ncclt.core.rollout import Reason, RollOut, Variant
from ncclt.user_dirs import recorded_tables


def choose_variant(
    chosen: Recommendation, rolled_out: Iterable[tuple[RollOut, Recommendation]], job: str, *, delivery: bool = True
) -> tuple[Recommendation, dict[str, str]]:
    """Return the recommendation to deliver to a job, and the variant, reason and roll-out that its answer names.

    Args:
        chosen: as of `select_fitting`; where none is active, the one that is rolled out.
        rolled_out: the running roll-outs of its pair, each with its revision.
        job: name of the job, equal in all of its processes; empty = not known: it has no part in a roll-out.
        delivery: as the rules of its cluster say.
    """
    if not delivery:
        why = f"delivery on {chosen.cluster} is switched off; this job keeps the choice of NCCL itself"
        return _with_reason(_held_back(chosen, why), variant=Variant.DEFAULT, reason=Reason.DISABLED)
    for rollout, candidate in rolled_out:
        if chosen.id != (rollout.control or rollout.recommendation):
            continue
        if candidate.stale and rollout.control:
            return _with_reason(chosen, reason=Reason.STALE)
        variant, part = rollout.variant(job), rollout.id if job else ""
        if variant is Variant.CANDIDATE:
            return _with_reason(candidate, variant=variant, rollout=part)
        if variant is Variant.DEFAULT:
            why = "this job keeps the choice of NCCL itself, with which a roll-out is compared"
            held_back = _held_back(candidate, why)
            return _with_reason(held_back, variant=variant, reason=Reason.DEFAULT, rollout=part)
        return _with_reason(chosen, rollout=part)
    return _with_reason(chosen)


def choose_from_store(url: str | None, request: Request) -> tuple[Recommendation, dict[str, str]]:
    """Return what `choose_variant` does, from a store.

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


def _with_reason(
    recommendation: Recommendation,
    *,
    variant: Variant = Variant.ACTIVE,
    reason: Reason = Reason.TARGETING_MATCH,
    rollout: str = "",
) -> tuple[Recommendation, dict[str, str]]:
    return recommendation, {"variant": variant.value, "reason": reason.value, "rollout": rollout}


def _held_back(recommendation: Recommendation, why: str) -> Recommendation:
    """Return a recommendation that delivers nothing: the job keeps NCCL's own choice."""
    verdict = replace(recommendation.table.verdict, decision=Decision.KEEP_DEFAULT, reason=why)
    nothing = PolicyVerdict(policy=Policy(), verdict=verdict)
    return replace(recommendation, table=nothing, variables=recommendation.variables and nothing)
