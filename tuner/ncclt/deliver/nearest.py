"""The nearest recommendation, for a job that nothing fits and that allows it: what may be taken over, and what not.

Nothing is proven for such a job, so it is given less than what was measured, never more: only what NCCL has and ncclt
may force on its nodes, its GPUs per node and its NCCL version too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Request, TimesOrigin
from ncclt.deliver.render.delivery import by_table, by_variables
from ncclt.errors import SettingError

_EVERYWHERE = (Algorithm.RING, Algorithm.TREE)
"""Algorithms that need nothing of the machines; the others need certain nodes, or one rank per node."""


def nearest_for(
    published: Iterable[Recommendation], request: Request, *, rolled_out: Collection[str]
) -> Recommendation | None:
    """Return the nearest recommendation as the job may have it, marked with how the job differs; None = there is none.

    Times that were measured count more than recorded and simulated ones, which take the job's word as ever. Then the
    fewest differences count, where nodes differ by the logarithm of their ratio, and then the newest.

    Args:
        published: newest first.
        request: the job.
        rolled_out: ids of revisions that only a share of the jobs may get.
    """
    if not request.nearest or request.unknown:
        return None
    newest: dict[tuple[str, TimesOrigin], Recommendation] = {}
    for one in published:
        newest.setdefault((one.fingerprint.digest(), one.origin), one)
    allowed = [
        one
        for one in newest.values()
        if not one.stale
        and one.id not in rolled_out
        and (one.origin is TimesOrigin.MEASURED or one.origin in request.allowed)
    ]
    origins = list(TimesOrigin)
    for one in sorted(allowed, key=lambda one: (origins.index(one.origin), _distance(one, request))):
        if (found := _adapted(one, request)) is not None:
            return found
    return None


def _distance(recommendation: Recommendation, request: Request) -> float:
    measured = recommendation.fingerprint
    assert request.nodes is not None
    others = len(request.differences(measured)) - (request.nodes != measured.nodes)
    return abs(math.log2(request.nodes / measured.nodes)) + others


def _adapted(recommendation: Recommendation, request: Request) -> Recommendation | None:
    """Return a recommendation for another job than it was measured for; None = it has nothing to say about it."""
    measured = recommendation.fingerprint
    assert request.nodes is not None
    assert request.gpus_per_node is not None
    assert request.nccl_version is not None
    if (request.nodes == 1) != (measured.nodes == 1):
        return None  # inside one node everything is different: the links, and what NCCL has
    forms = [recommendation.table, *([recommendation.variables] if recommendation.variables else [])]
    if all(form.verdict.decision is Decision.UNDECIDED for form in forms):
        return None
    asked = replace(
        measured, nodes=request.nodes, gpus_per_node=request.gpus_per_node, nccl_version=request.nccl_version
    )
    same_nodes = measured.gpus_per_node == asked.gpus_per_node and request.topology_hash in (
        None, measured.topology_hash,
    )  # fmt: skip

    def taken_over(rule: Rule) -> Rule | None:
        needs_these_nodes = rule.algorithm not in (None, *_EVERYWHERE) or rule.protocol is Protocol.LL128
        # Between two GPUs NCCL itself enables LL128 by rules of its own.
        if needs_these_nodes and not (same_nodes and asked.world_size > 2):
            return None
        if rule.group_size == measured.world_size:
            return replace(rule, group_size=asked.world_size, spans_nodes=None)
        return rule if not rule.group_size or (same_nodes and rule.group_size < asked.world_size) else None

    def adapted(form: PolicyVerdict) -> PolicyVerdict:
        rules = tuple(found for rule in form.policy.rules if (found := taken_over(rule)) is not None)
        if form.policy.parameters and len(rules) < len(form.policy.rules):
            return replace(form, policy=Policy())  # what was measured together is delivered together
        return replace(form, policy=Policy(rules=rules, parameters=form.policy.parameters))

    try:
        table = adapted(recommendation.table)
        variables = recommendation.variables and adapted(recommendation.variables)
        # Variables act on every size and group at once: without one of their rules they are another policy.
        if variables is not None and recommendation.variables != variables:
            variables = None
        made = replace(
            recommendation, fingerprint=asked, table=table, variables=variables, nearest=request.differences(measured)
        )
        by_variables(made)
        by_table(made)
    except SettingError:  # this NCCL does not have it
        return None
    left = [form for form in (table, variables) if form and not form.effective.is_default]
    nothing_is_left = not left and any(not form.effective.is_default for form in forms)
    return None if nothing_is_left else made
