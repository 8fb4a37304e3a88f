"""The page of one workload: its messages, the most that tuning can gain, and where it was tuned."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from ncclt.core.api_key import Role
from ncclt.profile.views.difference import compare_workloads
from ncclt.profile.views.exposure import bound_gain
from ncclt.profile.views.histogram import find_median_sizes, histogram
from ncclt.store.recommendations import Pair
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router

router = page_router(dependencies=needs(Role.READ))


class WorkloadQuery(PageQuery):
    """Another workload to compare with; a cluster hides results elsewhere."""

    other: str = Field("", alias="with")
    cluster: str = ""


@router.get("/workloads/{name:path}")
def show_workload(
    name: str, query: Annotated[WorkloadQuery, Query()], store: CurrentStore, page: CurrentPage
) -> Response:
    """Show the messages of one workload, the most that tuning can gain, and where it was tuned."""
    shipped = {entry.name: is_shipped for entry, is_shipped in store.workloads.entries()}
    workload = store.workloads.get(name)
    compared = store.workloads.get(query.other) if query.other else None
    weights = workload.weights()
    shares = [(calls, weight / sum(weights)) for calls, weight in zip(workload.messages, weights, strict=True)]
    values = {
        "workload": workload,
        "shipped": shipped[name],
        "calls": sum(calls.calls_per_step for calls in workload.messages),
        "half": find_median_sizes(workload),
        "bins": histogram(workload),
        "bound": bound_gain(workload),
        "dominant": {calls.message for calls in workload.dominant()},
        "shares": sorted(shares, key=lambda share: -share[1]),
        "pairs": sorted(store.recommendations.pairs(cluster=query.cluster or None, model=name), key=_rank_pair),
        "other": compared,
        "changes": compare_workloads(workload, compared) if compared else None,
    }
    return page.write("workload.html", query, values, others=sorted(shipped.keys() - {name}))


def _rank_pair(pair: Pair) -> tuple[bool, bool, float, str]:
    """Return the sort key of a result: usable ones first, then the largest gain."""
    revision = pair.recommendation
    if revision is None:
        return True, True, 0.0, pair.cluster
    return bool(revision.stale), bool(revision.label), -revision.table.verdict.speedup, pair.cluster
