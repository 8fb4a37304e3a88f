"""Tuning without launches: candidates without evidence become arms of a roll-out, and real jobs decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ncclt.core.cluster import Cluster
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.revision import Actor
from ncclt.core.rollout import RollOut, share_equally
from ncclt.core.study import Study
from ncclt.core.trial import ON_JOBS, TimesOrigin
from ncclt.core.workload import Workload
from ncclt.errors import NoRecommendationError
from ncclt.pipeline.candidates import MOST_CANDIDATES, build_study, describe_policy, propose_candidates
from ncclt.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class OnJobsPlan:
    """Candidates for the jobs of a workload, and their control.

    Attributes:
        study: that the candidates belong to; it has no trials.
        candidates: without evidence, none of them published yet.
        control: id of the active revision; empty = the jobs' own settings.
        percent: of the jobs that get a candidate; None = as a roll-out of several arms says.
    """

    study: Study
    candidates: tuple[Recommendation, ...]
    control: str
    percent: int | None

    def lines(self) -> list[str]:
        """Return the jobs, the candidates and the control as text, one line each."""
        against, where = self.control or "the jobs' own settings", self.study.cluster
        jobs = (
            f"jobs: {self.study.workload.name} on {where.name}: {where.nodes} x {where.gpus_per_node} {where.gpu}, "
            f"NCCL {where.nccl_version}"
        )
        arms = [f"candidate {candidate.id}: {describe_policy(candidate.table.policy)}" for candidate in self.candidates]
        return [jobs, *arms, f"control: {against}", "evidence: none yet; jobs will try the candidates"]


def plan_on_jobs(
    workload: Workload, cluster: Cluster, store: Store, *, by_plugin: bool, deterministic: bool
) -> OnJobsPlan:
    """Choose the candidates for the jobs of a workload; nothing is stored yet.

    Unproven policies of earlier studies come first, then proposals of the model. What a roll-out has tried is left out.

    Args:
        cluster: sized to the jobs.
        store: of earlier studies and of what is active.
        deterministic: only policies that keep the bits of the NCCL default.

    Raises:
        NoRecommendationError: there is no candidate.
    """
    published = store.recommendations.find(cluster=cluster.name, model=workload.name)
    fitting = [revision for revision in published if revision.fingerprint == cluster.fingerprint()]
    active = [
        revision
        for revision in store.recommendations.newest(cluster=cluster.name, model=workload.name)
        if revision in fitting
    ]
    measured = [revision for revision in active if revision.origin is TimesOrigin.MEASURED and not revision.is_untried]
    study = build_study(workload, cluster, evidence=ON_JOBS, deterministic=deterministic)
    tried = {policy for revision in measured for policy in revision.delivered} | {Policy()}
    tried |= {revision.table.policy for revision in fitting if store.revisions.rollouts(recommendation=revision.id)}
    proposed = propose_candidates(
        workload,
        cluster,
        most=MOST_CANDIDATES + len(tried),
        by_plugin=by_plugin,
        deterministic=deterministic,
        earlier=_select_unproven(fitting),
        study=study.id,
    )
    candidates = tuple(revision for revision in proposed if revision.table.policy not in tried)[:MOST_CANDIDATES]
    if not candidates:
        raise NoRecommendationError(
            f"the model proposes nothing for {workload.name} on {cluster.name} that was not tried",
            hint="the tuner plugin makes more possible (`ncclt admin plugin build`); or leave out --deterministic",
        )
    alone = len(candidates) == 1 and store.revisions.rules(cluster.name).percent == 100
    return OnJobsPlan(
        study=replace(study, reason=f"no launches: {count_noun(len(candidates), 'candidate')} for real jobs to try"),
        candidates=candidates,
        control=measured[0].id if measured else "",
        percent=share_equally(1) if alone else None,
    )


def start_on_jobs(plan: OnJobsPlan, store: Store, *, by: Actor, max_cost: float) -> str:
    """Publish the candidates, open their roll-out and return its id; empty = another person has to approve them.

    Args:
        plan: of `plan_on_jobs`.
        max_cost: share of the GPU hours of the roll-out that its arms may cost.

    Raises:
        ConflictError: another roll-out of these jobs is open, or a pin or a rule of the cluster is in the way.
    """
    first, *others = [store.revisions.publish(candidate, by=by, study=plan.study).id for candidate in plan.candidates]
    if store.revisions.rules(plan.study.cluster.name).require_approval:
        return ""
    return store.revisions.approve(first, by, arms=others, percent=plan.percent, max_cost=max_cost)


def describe_started(plan: OnJobsPlan, rollout: str) -> str:
    """Describe the next step in one line."""
    ids = " ".join(candidate.id for candidate in plan.candidates)
    if not rollout:
        return f"awaits approval by another person: `ncclt admin recommendations approve {ids}`"
    return (
        f"roll-out {rollout}: {count_noun(len(plan.candidates), 'candidate')} on job starts against "
        f"{plan.control or 'their own settings'}; see `ncclt admin recommendations show {plan.candidates[0].id}`"
    )


def describe_study(study: Study, store: Store) -> list[str]:
    """Describe the candidates of a study, one line each, then its roll-outs."""
    published = store.recommendations.find(study=study.id)[::-1]
    lines: list[str] = []
    rollouts: dict[str, RollOut] = {}
    for revision in published:
        state = store.revisions.status(revision.id).state
        lines.append(f"candidate {revision.id} ({state}): {describe_policy(revision.table.policy)}")
        rollouts |= {rollout.id: rollout for rollout in store.revisions.rollouts(recommendation=revision.id)}
    for rollout in rollouts.values():
        control = rollout.control or "the jobs' own settings"
        starts = count_noun(len(store.revisions.job_starts(rollout.id)), "job start")
        if rollout.winner:
            progress = f"{rollout.winner} won: {rollout.reason}"
        elif rollout.is_open:
            progress = f"{starts} against {control}"
        else:
            least = f"{rollout.min_effect * 100:g} %"
            progress = f"no candidate was faster by {least} or more on {starts}: keeping {control}"
        lines.append(f"roll-out {rollout.id} ({rollout.state}): {progress}")
    if published:
        lines.append(f"see `ncclt admin recommendations show {published[0].id}`")
    return lines


def _select_unproven(published: Sequence[Recommendation]) -> list[Policy]:
    """Return the policies that gained in recordings and simulations (an offline search), then undecided ones."""
    return [
        form.policy
        for decision in (Decision.TUNED, Decision.UNDECIDED)
        for revision in published
        if decision is Decision.UNDECIDED or revision.origin is not TimesOrigin.MEASURED
        for form in (revision.table, revision.variables)
        if form is not None and form.verdict.decision is decision and not form.policy.is_default
    ]
