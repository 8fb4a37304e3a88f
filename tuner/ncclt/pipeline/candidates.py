"""Candidates that real jobs try, in the form in which jobs get them, and the publication of one that wins."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ncclt.core.cluster import Cluster
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Request, Verdict, recommendation_id
from ncclt.core.setting import Setting
from ncclt.core.study import Study, StudyState
from ncclt.core.trial import ON_JOBS, TimesOrigin
from ncclt.core.workload import Workload
from ncclt.deliver.render.delivery import compare_numerics
from ncclt.nccl.compile import compile_policy, rule_label
from ncclt.nccl.numerics import SameBits
from ncclt.nccl.switching import find_forcing_problem
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.prove.tuned_arm import has_gain
from ncclt.search.candidates import propose_policies
from ncclt.store.store import Store

MOST_CANDIDATES = 4
"""Candidates at most: each one more takes as many starts of a job again."""

_MOST_PROPOSED = 16
"""Proposals looked at where many may be left out."""

UNTRIED = Verdict(
    decision=Decision.UNTRIED,
    reason="no evidence yet: jobs will try it",
    speedup=1.0,
    interval=(0.0, math.inf),
    blocks=0,
    default_us=0.0,
    policy_us=0.0,
)
"""Verdict without evidence."""


def select_candidates(
    workload: Workload, cluster: Cluster, store: Store, *, environ: Mapping[str, str]
) -> tuple[Recommendation, ...]:
    """Return the candidates for a job: measured gains, gains of recordings and simulations, then proposals.

    Args:
        workload: as it is stored.
        cluster: sized to the job.
        store: of what was published.
        environ: of this process.
    """
    wanted = Request(
        cluster=cluster.name,
        model=workload.name,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        nccl_version=str(cluster.version),
    )
    tuned = [
        recommendation
        for recommendation in store.recommendations.newest_each(cluster=cluster.name, model=workload.name)
        if has_gain(recommendation) and not recommendation.stale and not wanted.refusal(recommendation.fingerprint)
    ]
    measured = [recommendation for recommendation in tuned if recommendation.origin is TimesOrigin.MEASURED]
    published = measured[:MOST_CANDIDATES]
    missing = MOST_CANDIDATES - len(published)
    if not missing:
        return tuple(published)
    earlier = [recommendation.table.policy for recommendation in tuned if recommendation not in published]
    by_plugin = find_plugin(environ) is not None
    return (*published, *propose_candidates(workload, cluster, most=missing, by_plugin=by_plugin, earlier=earlier))


def propose_candidates(
    workload: Workload,
    cluster: Cluster,
    *,
    most: int = MOST_CANDIDATES,
    by_plugin: bool,
    deterministic: bool = False,
    earlier: Sequence[Policy] = (),
    study: str = "",
) -> tuple[Recommendation, ...]:
    """Return revisions to try on jobs, none of them published, each one a different policy.

    Args:
        workload: as it is stored.
        cluster: sized to the job.
        most: how many at most.
        by_plugin: jobs load the tuner plugin, so a policy may differ by size.
        deterministic: only policies that keep the bits of the NCCL default.
        earlier: policies of earlier studies without a verdict, which come first.
        study: id of the study that they belong to; empty = of none.
    """
    placed = workload.placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)

    def expressible(setting: Setting) -> bool:
        return not find_forcing_problem(
            setting, plugin=by_plugin, version=cluster.version, collectives=workload.collectives
        )

    proposed = propose_policies(
        placed, cluster, most=_MOST_PROPOSED if deterministic else most, by_table=by_plugin, expressible=expressible
    )
    candidates: dict[Policy, Recommendation] = {}
    for policy in (*earlier, *proposed):
        candidate = _build(policy, placed, workload, cluster, study)
        if not by_plugin and candidate.variables is None:
            continue
        numerics = compare_numerics(candidate, policy, by_variables=not by_plugin)
        if not deterministic or numerics.same_bits is SameBits.YES:
            candidates.setdefault(policy, candidate)
    return tuple(candidates.values())[:most]


def _build(policy: Policy, placed: Workload, workload: Workload, cluster: Cluster, study: str) -> Recommendation:
    table = PolicyVerdict(policy=policy, verdict=UNTRIED)
    compiled = compile_policy(policy, version=cluster.version, collectives=placed.collectives)
    variables = table if compiled.complete and compiled.variables else None
    place = f"{ON_JOBS} {cluster.name} {cluster.fingerprint().digest()}"
    return Recommendation(
        id=recommendation_id(place, table, variables, source_digest=workload.digest(), trials=0),
        revision=0,
        study=study,
        cluster=cluster.name,
        model=workload.name,
        workload_digest=placed.digest(),
        source_digest=workload.digest(),
        collectives=placed.collectives,
        dtypes=placed.dtypes,
        groups=placed.groups,
        fingerprint=cluster.fingerprint(),
        table=table,
        variables=variables,
        simulated=False,
        launcher=ON_JOBS,
        created="",
    )


def build_study(
    workload: Workload, cluster: Cluster, *, evidence: str, reason: str = "", deterministic: bool = False
) -> Study:
    """Return the study of candidates, which has no trials; the same request gives the same study.

    Args:
        workload: as it is stored.
        cluster: sized to the job.
        evidence: launcher name of the study, one of `ON_STEPS`.
        reason: of its end.
        deterministic: only policies that keep the bits of the NCCL default.
    """
    content = f"{workload.digest()} {cluster.fingerprint().digest()} {deterministic}"
    mark = hashlib.sha256(content.encode()).hexdigest()[:6]
    size = f"{cluster.nodes}x{cluster.gpus_per_node}"
    name = f"{workload.name}-{cluster.name}-{size}-nccl{cluster.nccl_version}-{evidence}-{mark}"
    return Study(
        id=hashlib.sha256(name.encode()).hexdigest()[:12],
        name=name,
        cluster=cluster,
        workload=workload.placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node),
        launcher=evidence,
        simulated=False,
        process_wide=(),
        seed=0,
        state=StudyState.DONE,
        reason=reason,
        deterministic=deterministic,
    )


def explain_other_backend(backend: str) -> str:
    """Return the reason why step times over another backend say nothing about NCCL."""
    return f"the job trained over {backend}, where NCCL settings have no effect"


def publish_winner(
    candidate: Recommendation,
    verdict: Verdict,
    study: Study,
    store: Store,
    *,
    baseline: Collection[str],
    backend: str,
    ranks: int,
) -> tuple[str, str]:
    """Publish a candidate that won inside a job, with the step times of this job as evidence.

    Args:
        candidate: of `propose_candidates`, or published before.
        verdict: `tuned`.
        study: of `build_study`.
        store: of revisions.
        baseline: names of the baseline's tuning variables; empty = the NCCL default.
        backend: of the job, where it is not NCCL; empty = NCCL.
        ranks: of the job; 0 = not known.

    Returns:
        Id of the published revision and the next step in one line; the id is empty if it was not published.
    """
    if backend:
        return "", f"Not published: {explain_other_backend(backend)}"
    if ranks and ranks != study.cluster.world_size:
        size = f"{study.cluster.nodes}x{study.cluster.gpus_per_node}"
        had = count_noun(ranks, "rank")
        return "", f"Not published: the job had {had}, not {size}; set --nodes and --gpus-per-node and run again"
    if not candidate.is_untried or store.revisions.statuses(id=candidate.id):
        return candidate.id, f"Revision {candidate.id} was published before; this run is stored as another verification"
    if baseline:
        names = ", ".join(sorted(baseline))
        return "", f"Not published: compared with your {names}, not with the NCCL default; unset them and run again"
    won = replace(candidate.with_verdict(verdict), study=study.id, launcher=study.launcher)
    published = store.revisions.publish(won, study=study).id
    return published, store.revisions.publication(published) or f"Revision {published} is active"


def describe_policy(policy: Policy) -> str:
    """Return a policy as text: its rules and parameters."""
    words = [rule_label(rule) for rule in policy.rules]
    return "; ".join([*words, *(f"NCCL_{name}={value}" for name, value in policy.parameters)]) or "NCCL default"
