"""The page that compares two to six results: their facts, and the policy of each by message size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from ncclt.core.api_key import Role
from ncclt.core.attestation import Form
from ncclt.core.message import Collective
from ncclt.core.policy import Rule
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.deliver.render.delivery import choose_form
from ncclt.errors import UsageError
from ncclt.store.store import Store
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStore
from ncclt_api.pages.response import CurrentPage, PageQuery, json_response, page_router
from ncclt_api.pages.results import ORIGIN_ORDER, Result, build_result
from ncclt_api.pages.wording import NONE, format_interval, format_range, format_shape, format_time

router = page_router(dependencies=needs(Role.READ))

FEWEST, MOST = 2, 6
"""Columns that can be compared."""

_FORMS = {Form.TABLE: "tuner table", Form.VARIABLES: "plain variables", None: NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A study with the revision that stands for it; None = it has published none."""

    study: Study
    recommendation: Recommendation | None

    @property
    def result(self) -> Result | None:
        """Return the revision's result."""
        return build_result(self.recommendation) if self.recommendation else None


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """Row of the comparison.

    Attributes:
        name: of the compared property.
        values: one per column.
        has_noise: the values are measured, so they always differ.
    """

    name: str
    values: tuple[str, ...]
    has_noise: bool = False

    @property
    def differs(self) -> bool:
        """True where the columns differ."""
        return len(set(self.values)) > 1

    @property
    def marks(self) -> tuple[bool, ...]:
        """Return for each value whether it differs from that of most columns; measured values are not marked."""
        ((usual, count),) = Counter(self.values).most_common(1)
        has_majority = 2 * count > len(self.values)
        is_marked = self.differs and not self.has_noise
        return tuple(is_marked and not (has_majority and value == usual) for value in self.values)


class CompareQuery(PageQuery):
    """Results to compare: studies, revisions, or a workload on clusters."""

    study: list[str] = Field([], max_length=50)
    revision: list[str] = Field([], max_length=50)
    model: str = ""
    cluster: list[str] = Field([], max_length=50)


@router.get("/compare")
def show_comparison(query: Annotated[CompareQuery, Query()], store: CurrentStore, page: CurrentPage) -> Response:
    """Set two to six results side by side."""
    columns, left_out = _select(query, store)
    is_asked = bool(query.study or query.revision or query.model)
    why = ""
    if len(columns) > MOST:
        why = f"{len(columns)} results selected: select at most {MOST}."
    elif is_asked and len(columns) < FEWEST:
        why = f"{'Only one result' if columns else 'No result'} for this selection: select at least {FEWEST}."
    view = compare(columns) if is_asked and not why else None
    if query.format == "json":
        if view is None:
            raise UsageError(why or "nothing selected to compare", hint="for example ?study=ID&study=ID")
        return json_response(view)
    return page.write_html("compare.html", query=query, view=view, why=why, left=left_out, most=MOST)


def _select(query: CompareQuery, store: Store) -> tuple[list[Compared], int]:
    """Return the selected revisions with their studies, and the number of clusters that are left out.

    A workload alone selects its first clusters; a selection one by one is never cut.
    """
    columns = []
    for key in query.study:
        study = store.studies.get(key)
        published = store.recommendations.find(study=study.id)
        columns.append(Compared(study=study, recommendation=published[0] if published else None))
    revisions, left_out = [store.recommendations.get(id) for id in query.revision], 0
    if query.model and len(query.cluster) == 1:
        revisions += store.recommendations.newest_each(cluster=query.cluster[0], model=query.model)[:MOST]
    elif query.model:
        newest = [pair.recommendation for pair in store.recommendations.pairs(model=query.model) if pair.recommendation]
        newest.sort(key=lambda revision: (ORIGIN_ORDER[revision.origin], revision.cluster))
        if query.cluster:
            revisions += [revision for revision in newest if revision.cluster in query.cluster]
        else:
            revisions, left_out = revisions + newest[:MOST], max(0, len(newest) - MOST)
    return columns + [find_compared(store, revision) for revision in revisions], left_out


def find_compared(store: Store, revision: Recommendation) -> Compared:
    """Return a revision with its study."""
    return Compared(study=store.studies.get(revision.study), recommendation=revision)


def compare(columns: Sequence[Compared]) -> dict[str, Any]:
    """Return the comparison of `FEWEST` to `MOST` results, in their order.

    Returns:
        columns: the results.
        facts: verdict, times, and the fingerprint.
        rules: the policies by message size.
        best: column with its interval above all others; None if intervals overlap, or times differ in origin.
        same_messages: same messages on the same shape, so times are comparable.
    """
    results = [column.result for column in columns]
    return {
        "columns": columns,
        "facts": _compare_facts(columns, results),
        "rules": _compare_rules(columns),
        "best": _find_best(results),
        "same_messages": len({column.study.workload.digest() for column in columns}) == 1,
    }


def _find_best(results: Sequence[Result | None]) -> int | None:
    tested = {place: result for place, result in enumerate(results) if result and result.verdict.blocks}
    # A simulated gain is never better than a measured one: they are not compared.
    if len(tested) < 2 or len({result.recommendation.origin for result in results if result}) > 1:
        return None
    best = max(tested, key=lambda place: tested[place].verdict.interval[0])
    highest = max(result.verdict.interval[1] for place, result in tested.items() if place != best)
    return best if tested[best].is_tuned and tested[best].verdict.interval[0] > highest else None


def _compare_facts(columns: Sequence[Compared], results: Sequence[Result | None]) -> list[ComparisonRow]:
    per = " or ".join(sorted({column.study.workload.per for column in columns}, reverse=True))
    measured: dict[str, Callable[[Result], str]] = {
        "95 % CI": lambda r: format_interval(r.interval) if r.interval else NONE,
        f"Default, {per}": lambda r: format_time(r.default_us),
        f"Policy, {per}": lambda r: "default" if r.policy_us is None else format_time(r.policy_us),
    }
    places: dict[str, Callable[[Study], str]] = {
        "Times": lambda s: "SIMULATED" if s.simulated else s.label or "measured",
        "NCCL": lambda s: s.cluster.nccl_version,
        "Job": lambda s: format_shape(s.cluster),
        "In the node": lambda s: s.cluster.link_class,
        "Between nodes": lambda s: s.cluster.fabric if s.cluster.nodes > 1 else NONE,
        "Driver": lambda s: s.cluster.driver or NONE,
        "Fingerprint": lambda s: s.cluster.fingerprint().digest(),
        "Messages": lambda s: s.workload.digest(),
    }
    delivered: dict[str, Callable[[Result], str]] = {
        "Delivered as": lambda r: _FORMS[choose_form(r.recommendation).form],
        "Process-wide": lambda r: _describe_parameters(r.recommendation),
    }

    def of_results(texts: Mapping[str, Callable[[Result], str]], *, has_noise: bool) -> list[ComparisonRow]:
        return [
            ComparisonRow(name, tuple(text(result) if result else NONE for result in results), has_noise)
            for name, text in texts.items()
        ]

    of_studies = [ComparisonRow(name, tuple(text(row.study) for row in columns)) for name, text in places.items()]
    return [*of_results(measured, has_noise=True), *of_studies, *of_results(delivered, has_noise=False)]


def _describe_parameters(revision: Recommendation) -> str:
    parameters = choose_form(revision).proven.policy.parameters
    return " ".join(f"NCCL_{name}={value}" for name, value in parameters) or NONE


def _compare_rules(columns: Sequence[Compared]) -> list[ComparisonRow]:
    """Return the choice of each in every range of sizes in which none of them changes."""
    revisions = [column.recommendation for column in columns]
    policies = [choose_form(revision).proven.policy if revision else None for revision in revisions]
    all_rules = [rule for policy in policies if policy for rule in policy.rules]
    rows = []
    for collective in sorted({rule.collective for rule in all_rules}):
        rules = [rule for rule in all_rules if rule.collective is collective]
        edges = sorted(
            {0, *(rule.min_bytes for rule in rules), *(rule.max_bytes + 1 for rule in rules if rule.max_bytes)}
        )
        for start, following in zip(edges, [*edges[1:], None], strict=True):
            span = Rule(collective=collective, min_bytes=start, max_bytes=following - 1 if following else None)
            values = [
                _describe_choice(policy.rules, collective, start) if policy is not None else NONE for policy in policies
            ]
            rows.append(ComparisonRow(f"{collective.value}, {format_range(span)}", tuple(values)))
    return rows


def _describe_choice(rules: Sequence[Rule], collective: Collective, size_bytes: int) -> str:
    """Return the choice of a policy for a size; rules for one group size are named with it."""
    texts = []
    for rule in rules:
        is_below = rule.max_bytes is None or size_bytes <= rule.max_bytes
        if rule.collective is collective and rule.min_bytes <= size_bytes and is_below:
            pair = f"{rule.algorithm.value if rule.algorithm else '*'}/{rule.protocol.value if rule.protocol else '*'}"
            channels = f" c={rule.channels}" if rule.channels else ""
            texts.append(f"{pair}{channels}" + (f" ({rule.group_size} ranks)" if rule.group_size else ""))
    return ", ".join(texts) or "default"
