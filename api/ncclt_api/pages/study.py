"""The page of one study: its verdict, evidence, cost and log, also for a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from ncclt.core.api_key import Role
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.recommendation import MIN_EFFECT, Decision, Recommendation, Verdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial, gpu_seconds, median_scores
from ncclt.core.workload import Workload
from ncclt.deliver.render.delivery import choose_form
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK, ArmLaunch, LaunchEvidence, collect_evidence
from ncclt.prove.payback import describe_cost
from ncclt.prove.proof import average_unchanged
from ncclt.prove.study_summary import StudySummary, summarize_study
from ncclt.prove.verdict import block_speedups
from ncclt.store.store import Store
from ncclt_api.access import needs
from ncclt_api.dependencies import CurrentStudy
from ncclt_api.json_models import LAST_SHOWN
from ncclt_api.pages import study_charts
from ncclt_api.pages.recommendation import describe_delivery, find_served, list_snippets, server_option
from ncclt_api.pages.response import CurrentPage, PageQuery, page_router
from ncclt_api.pages.study_charts import arm_times, setting_times
from ncclt_api.pages.trials import TrialChoice, build_table
from ncclt_api.pages.wording import NONE, PHASES, format_saving, format_speedup, format_state, format_time

router = page_router(dependencies=needs(Role.READ))

MOST_REPEATS = 50
"""Trials of one setting whose measurements are read for the times of its messages."""

MOST_CANDIDATES = 24
"""Settings whose times are compared size by size: those of the policy, and the best of each algorithm and protocol."""

_REPEATS_OF_A_CANDIDATE = 3


class StudyQuery(TrialChoice, PageQuery):
    """Tab, selection of trials, and chosen format of the result."""

    tab: Literal["result", "sizes", "search", "trials", "jobs"] = "result"
    use: str = Field("", max_length=40)


@router.get("/studies/{id}")
def show_study(
    study: CurrentStudy, query: Annotated[StudyQuery, Query()], request: Request, page: CurrentPage
) -> Response:
    """Show one study with its evidence."""
    state = request.app.state
    values = state.study_pages(
        study, server=state.public_url, choice=query, now=datetime.now(UTC), tab=query.tab, use=query.use
    )
    return page.write("study.html", query, values)


@dataclass(frozen=True, slots=True)
class Heading:
    """Verdict in one sentence.

    Attributes:
        status: decision, `stale` or `open`: the class of its badge.
        label: text of the badge.
        sentence: the explanation.
    """

    status: str
    label: str
    sentence: str


def build_study_view(
    study: Study,
    trials: Sequence[Trial],
    recommendation: Recommendation | None,
    *,
    measured: Callable[[Sequence[Trial]], Sequence[Trial]],
    server: str,
) -> dict[str, Any]:
    """Return figures and charts of a study.

    Args:
        study: its name, place and workload.
        trials: all its trials, by number, as of `Trials.with_proof`.
        recommendation: its newest revision; None = none yet.
        measured: returns trials with their measurements; asked for the few that are shown.
        server: address of this service for the command shown; empty = the command names none.
    """
    scores = median_scores(trials)
    evidence = collect_evidence([trial for trial in trials if trial.phase is Phase.PROVE])
    # A verdict without an A/B test means that the search found no candidate worth one.
    use = choose_form(recommendation, source=server_option(server)) if recommendation else None
    summary = summarize_study(study, trials, recommendation, use=use) if recommendation else None
    arm = evidence.proven_arm(summary.use.form if summary else None)
    pairs = average_unchanged(evidence.whole_blocks(arm), study.workload)
    min_effect, per = summary.use.proven.verdict.min_effect if summary else MIN_EFFECT, study.workload.per
    best_us = min(scores.values(), default=None)
    return {
        "study": study,
        "recommendation": recommendation,
        "heading": _build_heading(study, recommendation, summary, best_us, scores.get(DEFAULT)),
        **_compare_messages(study, trials, evidence, summary, scores, measured),
        "blocks": build_blocks(evidence, study.workload),
        "arms": [arm for arm in Arm if any(launch.arm is arm for launch in evidence.launches)],
        # None before the default was measured.
        "history": study_charts.search_chart(trials, scores.get(DEFAULT), evidence.launches, per=per),
        "summary": summary,
        "cost": describe_cost(study, trials, summary.gain if summary else None),
        # None before the first whole block of the A/B test.
        "proof": study_charts.proof_charts(pairs, min_effect=min_effect, per=per),
        "costs": phase_costs(study, trials) if trials else (),
        "log": build_log(study, trials, recommendation, scores),
    }


def _compare_messages(
    study: Study,
    trials: Sequence[Trial],
    evidence: LaunchEvidence,
    summary: StudySummary | None,
    scores: Mapping[Setting, float],
    measured: Callable[[Sequence[Trial]], Sequence[Trial]],
) -> dict[str, Any]:
    """Return the messages with the default and with the policy (or the best setting so far), with charts by size."""
    ranked = sorted(scores, key=lambda setting: scores[setting])
    best = next(iter(ranked), DEFAULT)
    single = next((setting for setting in ranked if setting != DEFAULT), None)
    proven, arm = (summary.use.proven if summary else None), evidence.proven_arm(summary.use.form if summary else None)
    policy = proven.policy if proven else None
    candidates = _select_candidates(ranked, policy)
    searched = measured(_sample_trials(trials, {DEFAULT, best, *([single] if single else [])}, candidates))
    if proven and evidence.times_us(arm):
        compared, rows = "policy", study_charts.policy_rows(study, evidence, proven, arm)
        default = arm_times(evidence, Arm.DEFAULT, "NCCL default", "default")
        timed = [trial for trial in trials if trial.phase is Phase.PROVE]
    else:
        compared, rows = "best setting", study_charts.best_setting_rows(study, searched, best)
        default = setting_times(searched, DEFAULT, "NCCL default", "default")
        timed = [*searched]
    curves = [default]
    curves += [setting_times(searched, single, f"best single setting, {single.label}", "best")] if single else []
    curves += [arm_times(evidence, arm, "policy", "policy")] if evidence.times_us(arm) else []
    times = {setting: setting_times(searched, setting, setting.label, "quiet") for setting in candidates}
    return {
        "compared": compared,
        "rows": rows,
        "interpolated": study_charts.interpolated_messages(timed, study.workload),
        "wins": study_charts.wins_chart(study, policy, default, times),
        "curves": study_charts.size_curves(study, curves) if default.of else {},
    }


def _select_candidates(ranked: Sequence[Setting], policy: Policy | None) -> list[Setting]:
    """Return the settings whose times are compared size by size; `MOST_CANDIDATES` at most.

    Those of the policy, then the best of each algorithm and protocol, then that of each number of channels too.

    Args:
        ranked: the fastest per step first.
        policy: None = there is none yet.
    """
    in_policy = {(rule.algorithm, rule.protocol, rule.channels) for rule in (policy.rules if policy else ())}
    by_channels: dict[tuple[object, ...], Setting] = {}
    by_family: dict[tuple[object, ...], Setting] = {}
    for setting in ranked:
        if setting != DEFAULT:
            by_channels.setdefault((setting.algorithm, setting.protocol, setting.channels), setting)
            by_family.setdefault((setting.algorithm, setting.protocol), setting)
    first = [setting for key, setting in by_channels.items() if key in in_policy]
    return list(dict.fromkeys([*first, *by_family.values(), *by_channels.values()]))[:MOST_CANDIDATES]


def _sample_trials(trials: Sequence[Trial], often: Collection[Setting], rarely: Collection[Setting]) -> list[Trial]:
    """Return trials of some settings, evenly over the study where there are many: by number, each once."""
    by_setting: dict[Setting, list[Trial]] = {setting: [] for setting in (*often, *rarely)}
    for trial in trials:
        if trial.tries_setting and trial.score_us is not None and trial.setting in by_setting:
            by_setting[trial.setting].append(trial)
    picked = []
    for setting, launches in by_setting.items():
        most = MOST_REPEATS if setting in often else _REPEATS_OF_A_CANDIDATE
        picked += launches[:: max(1, -(-len(launches) // most))]
    return sorted(picked, key=lambda trial: trial.number)


def _build_heading(
    study: Study,
    recommendation: Recommendation | None,
    summary: StudySummary | None,
    best_us: float | None,
    default_us: float | None,
) -> Heading:
    if recommendation and summary:
        if recommendation.stale:
            sentence = f"No longer served: {recommendation.stale}. Tune again, or run `ncclt recheck` after the repair."
            return Heading("stale", "stale", sentence)
        return _describe_verdict(summary.use.proven.verdict, recommendation)
    so_far = ""
    if best_us and default_us and best_us < default_us:
        so_far = f" Best setting so far: {format_speedup(default_us / best_us)}, not validated."
    elif default_us:
        so_far = " Nothing faster than the NCCL default so far."
    if study.state is StudyState.RUNNING:
        return Heading("open", "searching", f"The search is running.{so_far}")
    if study.state is StudyState.INTERRUPTED:
        again = f"Run the same `ncclt tune` command to resume it; its name is {study.name}."
        return Heading("open", "interrupted", f"The search was interrupted. {again}{so_far}")
    return Heading("open", "no verdict", f"No verdict. {study.reason}".strip())


def _describe_verdict(verdict: Verdict, revision: Recommendation) -> Heading:
    if verdict.decision is Decision.TUNED:
        origin = f" on {revision.origin} times" if revision.label else ""
        gain = f"{format_speedup(verdict.speedup)} faster than the NCCL default{origin}"
        saving = f"{format_saving(verdict)} less communication time"
        sentence = f"{gain}: {verdict.reason if revision.has_step_times else saving}."
    elif verdict.decision is Decision.UNDECIDED:
        sentence = f"Keeping the NCCL default: the A/B test is undecided: {verdict.reason}."
    elif verdict.decision is Decision.UNTRIED:
        sentence = "No evidence yet: jobs try it in a roll-out."
    else:
        sentence = f"Keeping the NCCL default: no policy beat it by the {100 * verdict.min_effect:g} % threshold."
    return Heading(verdict.decision.value, format_state(revision.verdict_word(verdict)), sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of the A/B test.

    Attributes:
        number: from 0.
        launches: of each arm, in order; one measurement of a whole arm each.
        order: the arms, first to last.
        ratios: default over each arm, as the verdict counts it; above 1 = the arm is faster. Only of whole blocks.
    """

    number: int
    launches: Mapping[Arm, tuple[ArmLaunch, ...]]
    order: tuple[Arm, ...]
    ratios: Mapping[Arm, float]


def build_blocks(evidence: LaunchEvidence, workload: Workload) -> tuple[Block, ...]:
    """Return the blocks of the last A/B test, in order; empty before it started."""
    ratios: dict[tuple[int, Arm], float] = {}
    for arm in {launch.arm for launch in evidence.launches} - {Arm.DEFAULT}:
        pairs = average_unchanged(evidence.whole_blocks(arm), workload)
        for first in range(0, len(pairs), LAUNCHES_PER_BLOCK):
            sides = zip(*pairs[first : first + LAUNCHES_PER_BLOCK], strict=True)
            times_us = [[launch.time_us for launch in side if launch.time_us is not None] for side in sides]
            ratios[pairs[first][1].block // LAUNCHES_PER_BLOCK, arm] = block_speedups(*times_us)[0]
    by_block: dict[int, list[ArmLaunch]] = {}
    for launch in evidence.launches:
        by_block.setdefault(launch.block // LAUNCHES_PER_BLOCK, []).append(launch)
    blocks = []
    for number, launches in sorted(by_block.items()):
        arms = {launch.arm for launch in launches}
        blocks.append(
            Block(
                number=number,
                launches={arm: tuple(launch for launch in launches if launch.arm is arm) for arm in arms},
                order=tuple(launch.arm for launch in launches),
                ratios={arm: ratios[number, arm] for arm in arms if (number, arm) in ratios},
            )
        )
    return tuple(blocks)


def phase_costs(study: Study, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return the cost of each phase with launches, and the total.

    Returns:
        phase: name of the phase; `all` in the last row.
        launches, failed: numbers of launches.
        wall_s: total time of the launches, s.
        gpu_hours: GPU hours of the launches.
    """

    def add_up(phase: str, launches: Sequence[Trial]) -> dict[str, Any]:
        return {
            "phase": phase,
            "launches": len(launches),
            "failed": sum(1 for trial in launches if trial.score_us is None),
            "wall_s": sum(trial.result.wall_s for trial in launches),
            "gpu_hours": gpu_seconds(launches, study.cluster) / 3600,
        }

    parts = {name: [trial for trial in trials if trial.phase is phase] for phase, name in PHASES.items()}
    return [*(add_up(name, launches) for name, launches in parts.items() if launches), add_up("all", trials)]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One decision of the study.

    Attributes:
        time: ISO time; empty where it was not stored.
        event: the decision.
        detail: its figures and reason.
    """

    time: str
    event: str
    detail: str


def build_log(
    study: Study,
    trials: Sequence[Trial],
    recommendation: Recommendation | None,
    scores: Mapping[Setting, float],
) -> tuple[LogEntry, ...]:
    """Return the decisions of a study in order.

    Args:
        study: the study.
        trials: all of them.
        recommendation: its newest revision.
        scores: median time per step of each setting before the A/B test, µs.
    """
    origin = f"{study.workload.name} on {study.cluster.name}, seed {study.seed}, {study.launcher}"
    log = [LogEntry(study.created, "Study started", origin)]
    log += [*_log_search(study, trials, scores), *_log_validation(trials)]
    if recommendation:
        log += _log_result(recommendation)
    elif study.state is StudyState.INTERRUPTED:
        log.append(LogEntry(study.updated, "Study interrupted", study.reason or NONE))
    return tuple(log)


def _log_search(study: Study, trials: Sequence[Trial], scores: Mapping[Setting, float]) -> Iterator[LogEntry]:
    tried = [trial for trial in trials if trial.tries_setting]
    started: dict[Setting, str] = {}
    for trial in tried:
        if trial.score_us is not None:
            started.setdefault(trial.setting, trial.started)
    default_us = scores.get(DEFAULT)
    if default_us is not None:
        count = sum(1 for trial in tried if trial.setting == DEFAULT)
        detail = f"{format_time(default_us)} of communication {study.workload.per}, median of {count}"
        yield LogEntry(started[DEFAULT], "NCCL default measured", detail)
    searched = [trial for trial in trials if trial.phase is Phase.SEARCH]
    failed = Counter(format_state(trial.result.outcome) for trial in searched if trial.score_us is None)
    if failed:
        listed = ", ".join(f"{count} {outcome}" for outcome, count in failed.most_common())
        yield LogEntry("", f"{count_noun(failed.total(), 'trial')} failed", listed)
    others = {setting: us for setting, us in scores.items() if setting != DEFAULT}
    if others and default_us:
        best = min(others, key=lambda setting: others[setting])
        gain = f"{format_speedup(default_us / others[best])}, not validated"
        detail = f"{best.label}: {gain}, best of {count_noun(len(others), 'setting')}"
        yield LogEntry(started[best], "Best single setting found", detail)
    if study.reason:
        yield LogEntry(searched[-1].started if searched else "", "Search ended", study.reason)


def _log_validation(trials: Sequence[Trial]) -> Iterator[LogEntry]:
    confirmed = [trial for trial in trials if trial.phase is Phase.CONFIRM]
    if confirmed:
        settings = len({trial.setting for trial in confirmed if trial.policy is None})
        policies = sum(trial.policy is not None for trial in confirmed)
        parts = [count_noun(settings, "setting")] if settings else []
        parts += [f"the best policy ({count_noun(policies, 'launch', 'launches')})"] if policies else []
        detail = f"{' and '.join(parts)}, because the fastest of many is partly luck"
        yield LogEntry(confirmed[0].started, "Candidates confirmed", detail)
    proof = [trial for trial in trials if trial.phase is Phase.PROVE]
    if proof:
        arms = ", ".join(arm.value for arm in Arm if any(trial.arm is arm for trial in proof))
        yield LogEntry(proof[0].started, "A/B test started", f"interleaved launches of {arms}")


def _log_result(revision: Recommendation) -> Iterator[LogEntry]:
    forms = {"Tuner table": revision.table} | ({"Plain variables": revision.variables} if revision.variables else {})
    for name, form in forms.items():
        label = format_state(revision.verdict_word(form.verdict))
        yield LogEntry(revision.created, f"{name}: {label}", form.verdict.reason)
    is_tuned = any(form.verdict.decision is Decision.TUNED for form in forms.values())
    detail = "available to jobs of this fingerprint" if is_tuned and not revision.label else "keeping the NCCL default"
    if revision.is_untried:
        detail = "available to jobs of its roll-out alone"
    yield LogEntry(revision.created, f"Revision {revision.revision} published", detail)
    if revision.stale:
        yield LogEntry("", "No longer served", revision.stale)


TABS = {"result": "Result", "sizes": "Sizes", "search": "Search", "trials": "Trials", "jobs": "Real jobs"}
"""Parts of the page, in order, each with an address; a report has them all."""

_AT_REST = timedelta(seconds=5)
"""Time without a change after which two trials of one millisecond cannot be mixed up."""

_MOST_CACHED = 16


class StudyPages:
    """Reader of the pages of studies; the view of a study at rest is kept, as every trial changes the study's time."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._cached = lru_cache(maxsize=_MOST_CACHED)(self._read)

    def __call__(
        self, study: Study, *, server: str, choice: TrialChoice, now: datetime, tab: str = "", use: str = ""
    ) -> dict[str, Any]:
        """Return the values of the template `study.html`.

        Args:
            study: the study.
            server: address of the service for the command shown; empty = the command names none.
            choice: which trials are listed.
            now: for ages.
            tab: key of `TABS`.
            use: chosen format of the result; empty = the recommended one.

        Raises:
            UsageError: the choice names a message that the workload does not have.
        """
        store = self._store()
        revision = next(iter(store.recommendations.find(study=study.id)), None)
        at_rest = bool(study.updated) and now - datetime.fromisoformat(study.updated) > _AT_REST
        read = self._cached if at_rest else self._read
        published = (revision.id, revision.stale) if revision else None
        return {
            "view": read(study.id, study.updated, study.state, published, server),
            "trials": build_table(store, study, choice),
            "now": now,
            "wanted": use,
            "is_live": study.state is StudyState.RUNNING,
            "tab": tab,
            "tabs": TABS,
            **_read_use(store, revision, server),
        }

    def _read(
        self, id: str, _updated: str, _state: StudyState, _published: tuple[str, str] | None, server: str
    ) -> dict[str, Any]:
        store = self._store()
        return build_study_view(
            store.studies.get(id),
            store.trials.with_proof(id),
            next(iter(store.recommendations.find(study=id)), None),
            measured=partial(store.trials.with_measurements, id),
            server=server,
        )


def _read_use(store: Store, revision: Recommendation | None, server: str) -> dict[str, Any]:
    """Return the use of a revision by jobs, and their reports."""
    if revision is None:
        empty = dict.fromkeys(("verifications", "step_charts", "attestations", "snippets"), ())
        return {**empty, "instead": None, "delivery": None}
    served = find_served(store, revision)
    verifications = store.records.verifications(recommendation=revision.id, limit=LAST_SHOWN)
    is_served = served is not None and served.id == revision.id
    return {
        "verifications": verifications,
        "step_charts": study_charts.verification_charts(verifications[0]) if verifications else (),
        "attestations": store.records.attestations([revision.id], limit=LAST_SHOWN),
        "instead": served if served and served.study != revision.study and not served.stale else None,
        "delivery": describe_delivery(store, revision, served),
        "snippets": list_snippets(revision, source=server_option(server)) if is_served else (),
    }
