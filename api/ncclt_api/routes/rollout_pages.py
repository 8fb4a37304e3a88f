"""The pages of roll-outs, and the forms that pause a roll-out or switch the delivery of a cluster."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ncclt.core.api_key import Role
from ncclt.core.revision import MOST_WHY, Actor
from ncclt.core.rollout import OPEN_STATES, JobStart, JobTime, RollOut, RollOutState
from ncclt.prove.rollout import describe_cohort_bits, judge_roll_out
from ncclt.store.store import Store
from ncclt_api.access import needs, who
from ncclt_api.dependencies import CurrentStore
from ncclt_api.pages.rollouts import Holds, RollOutRow, build_rows, gain_chart, list_rollout_actions, starts_chart
from ncclt_api.routes.overview_pages import Filter, find_cluster, list_names
from ncclt_api.routes.pages import WHOLE_PAGE, PageQuery, build_address, json_response, page_response
from ncclt_api.routes.revisions import RollOutDocument, StateChange
from ncclt_api.routes.rollouts import get_roll_out, pause_roll_out, resume_roll_out
from ncclt_api.sign_in import OwnForm

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

ROLL_OUTS_PER_PAGE = 25
_EVENTS = 20

Why = Annotated[str, Form(max_length=MOST_WHY)]


class RollOutsPageQuery(Filter):
    """Filter of the list, and its page; `open` = those that have not ended."""

    state: RollOutState | Literal["open", ""] = ""
    page: int = Field(1, ge=1, le=1000)


@router.get("/roll-outs", dependencies=needs(Role.READ))
def show_roll_outs(query: Annotated[RollOutsPageQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """List the roll-outs, newest first."""
    found = store.revisions.rollouts(
        cluster=query.cluster or None,
        model=query.model or None,
        state=OPEN_STATES if query.state == "open" else query.state or None,
        limit=ROLL_OUTS_PER_PAGE + 1,
        offset=(query.page - 1) * ROLL_OUTS_PER_PAGE,
    )
    shown, more = found[:ROLL_OUTS_PER_PAGE], len(found) > ROLL_OUTS_PER_PAGE
    open_ids = [one.id for one in shown if one.is_open]
    rows = _judge(store, shown, store.revisions.job_times(*open_ids), store.revisions.job_starts(*open_ids))
    if query.format == "json":
        documents = [
            {
                "rollout": RollOutDocument.model_validate(row.rollout.to_document()),
                "percent": row.percent,
                "held": row.held,
                "reports": row.reports,
                "controls": row.controls,
                "unreported": row.unreported,
                "unreported_controls": row.unreported_controls,
                "lacks_reports": row.lacks_reports,
                "missing_pairs": row.missing_pairs,
                "verdict": row.verdict,
                "progress": row.progress,
            }
            for row in rows
        ]
        return json_response({"rollouts": documents, "more": more})
    chosen = {"cluster": query.cluster, "model": query.model, "state": str(query.state)}
    return page_response(
        request,
        "rollouts.html",
        rows=rows,
        chosen=chosen,
        filtered=any(chosen.values()),
        clusters=list_names((cluster.name for cluster, _ in store.clusters.entries()), query.cluster),
        models=list_names((workload.name for workload, _ in store.workloads.entries()), query.model),
        states=["open", *(state.value for state in RollOutState)],
        newer=build_address("/roll-outs", chosen, query.page - 1) if query.page > 1 else "",
        older=build_address("/roll-outs", chosen, query.page + 1) if more else "",
    )


@router.get("/roll-outs/{id}", dependencies=needs(Role.READ))
def show_roll_out(id: str, query: Annotated[PageQuery, Query()], store: CurrentStore, request: Request) -> Response:
    """Show one roll-out with its jobs so far."""
    found = store.revisions.rollout(id)
    if query.format == "json":
        return json_response({"rollout": get_roll_out(id, store)})
    times, starts = store.revisions.job_times(id), store.revisions.job_starts(id)
    ids = [arm.recommendation for arm in found.arms]
    answer = page_response(
        request,
        "rollout.html",
        rollout=found,
        row=_judge(store, [found], times, starts)[0],
        numerics=describe_cohort_bits(store, found),
        charts=[drawn for draw in (gain_chart, starts_chart) if (drawn := draw(found, times, starts))],
        actions=list_rollout_actions(found, [one.id for one in store.recommendations.find(id=ids) if one.is_untried]),
        events=store.revisions.history(recommendation=ids, limit=_EVENTS),
    )
    if not found.is_open:  # replace the whole page where it is open
        answer.headers.update(WHOLE_PAGE)
    return answer


def _judge(
    store: Store, rollouts: Sequence[RollOut], times: Iterable[JobTime], starts: Iterable[JobStart]
) -> list[RollOutRow]:
    """Return the rows of roll-outs, from the jobs of the open ones."""
    reported: dict[str, list[JobTime]] = defaultdict(list)
    started: dict[str, list[JobStart]] = defaultdict(list)
    for report in times:
        reported[report.rollout].append(report)
    for start in starts:
        started[start.rollout].append(start)
    live, now_s = [one for one in rollouts if one.is_open], time.time()
    verdicts = {one.id: judge_roll_out(one, reported[one.id], started[one.id], now_s=now_s) for one in live}
    counts = store.revisions.count_jobs([one.id for one in rollouts])
    return build_rows(rollouts, counts, verdicts, Holds.read(store, live))


@router.post("/roll-outs/{id}/{verb}", dependencies=[*needs(Role.APPROVE), OwnForm])
def hold(id: str, verb: Literal["pause", "resume"], store: CurrentStore, request: Request, why: Why = "") -> Response:
    """Pause or resume a roll-out, and show it again."""
    change = pause_roll_out if verb == "pause" else resume_roll_out
    change(id, StateChange(why=why), store, request)
    return RedirectResponse(f"/roll-outs/{quote(id, safe='')}", 303)


@router.post("/clusters/{name:path}/delivery", dependencies=[*needs(Role.ADMIN), OwnForm])
def switch_delivery(
    name: str, on: Annotated[bool, Form()], store: CurrentStore, request: Request, why: Why = ""
) -> Response:
    """Switch the delivery of a cluster on or off, and show the cluster again."""
    find_cluster(store, name)  # refused before anything is stored
    rules = replace(store.revisions.rules(name), delivery=on)
    store.revisions.set_rules(rules, Actor(who=who(request), why=why.strip()))
    return RedirectResponse(f"/clusters/{quote(name, safe='')}", 303)
