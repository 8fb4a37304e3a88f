"""The content of the page of one study, computed before any HTML."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.recommendation import MIN_EFFECT, Decision, Recommendation, Verdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial, median_scores
from ncclt.core.workload import Workload
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK, ArmLaunch, LaunchEvidence, collect_evidence
from ncclt.prove.payback import describe_cost
from ncclt.prove.proof import average_unchanged
from ncclt.prove.study_summary import StudySummary, summarize_study
from ncclt.prove.verdict import block_speedups
from ncclt_api.pages.charts import Chart
from ncclt_api.pages.message_rows import MessageLine, best_setting_rows, interpolated_messages, policy_rows
from ncclt_api.pages.study_charts import SearchPoint, search_chart
from ncclt_api.pages.study_proof import ProofCharts, proof_charts
from ncclt_api.pages.study_sizes import Curves, SizeTimes, arm_times, curves_of, setting_times, shares_chart, wins_chart
from ncclt_api.pages.study_worth import (
    DecisionStep,
    PhaseCost,
    cost_rows,
    decisions_of,
    payback_chart,
)
from ncclt_api.pages.wording import format_saving, format_speedup

MOST_REPEATS = 50
"""Trials of one setting whose measurements are read for the times of its messages."""

MOST_CANDIDATES = 24
"""Settings whose times are compared size by size: those of the policy, and the best of each algorithm and protocol."""

_REPEATS_OF_A_CANDIDATE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The verdict in words.

    Attributes:
        status: decision, `stale` or `open`: the class of its badge.
        label: text of the badge.
        sentence: explains it.
    """

    status: str
    label: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """The content of the page.

    Attributes:
        compared: what is compared with the default in `rows`: the policy, or the best setting so far.
        interpolated: of its messages those whose size was not itself measured.
        arms: what the verification measured.
        summary: what the recommendation is worth, and the one command that uses it; None = there is none.
        cost: GPU time of all launches and when it is saved again, as text; empty where nothing was launched.
        wins: which algorithm, protocol and channels win at which size; None before anything was measured.
        curves: time and bus bandwidth over the size, by collective and group.
        shares: what each message saves.
        proof: its pairs and its interval; None before its first whole block.
        costs: of each phase.
        payback: when the study has paid for itself; None where nothing is paid back.
        decisions: what was decided and why.
    """

    study: Study
    recommendation: Recommendation | None
    heading: Heading
    compared: str
    rows: tuple[MessageLine, ...]
    interpolated: frozenset[Message]
    blocks: tuple[Block, ...]
    arms: tuple[Arm, ...]
    history: Chart | None
    summary: StudySummary | None
    cost: str
    wins: Chart | None
    curves: tuple[Curves, ...]
    shares: Chart | None
    proof: ProofCharts | None
    costs: tuple[PhaseCost, ...]
    payback: Chart | None
    decisions: tuple[DecisionStep, ...]

    @property
    def proven(self) -> Verdict | None:
        """Return the verdict of what is used; None before there is one."""
        return self.summary.use.proven.verdict if self.summary else None


def study_view(
    study: Study,
    trials: Sequence[Trial],
    recommendation: Recommendation | None,
    *,
    measured: Callable[[Sequence[Trial]], Sequence[Trial]],
    server: str,
) -> StudyView:
    """Return the content of the page of a study.

    Args:
        study: the study.
        trials: all its trials, by number; their measurements are not needed.
        recommendation: its newest revision; None = none yet.
        measured: returns trials with their measurements; asked for the few that are shown.
        server: address of this service for the command shown; empty = the command names none.
    """
    scores = median_scores(trials)
    best = min(scores, key=lambda setting: scores[setting], default=DEFAULT)
    proof = measured([trial for trial in trials if trial.phase is Phase.PROVE])
    evidence = collect_evidence(proof)
    # A verdict without a verification means that the search found nothing worth proving.
    source = f" --server {shlex.quote(server)}" if server else ""
    summary = None
    if recommendation:
        loaded = {trial.number: trial for trial in proof}
        with_proof = [loaded.get(trial.number, trial) for trial in trials]
        summary = summarize_study(study, with_proof, recommendation, source=source)
    arm = evidence.proven_arm(summary.use.form if summary else None)
    policy = summary.use.proven.policy if summary else None
    single = min((one for one in scores if one != DEFAULT), key=lambda one: scores[one], default=None)
    compared_settings = _candidates(scores, policy)
    searched = measured(_samples(trials, {DEFAULT, best, *([single] if single else [])}, compared_settings))
    default = arm_times(evidence, Arm.DEFAULT, "The NCCL default", "default")
    if summary and evidence.times_us(arm):
        compared, rows = "policy", policy_rows(study, evidence, summary.use.proven, arm)
    else:
        compared, rows = "best setting", best_setting_rows(study, searched, best)
        default = setting_times(searched, DEFAULT, "The NCCL default", "default")
    shown = [default]
    if single is not None:
        shown.append(setting_times(searched, single, f"best single setting, {single.label}", "best"))
    if evidence.times_us(arm):
        shown.append(arm_times(evidence, arm, "policy", "policy"))
    candidates: dict[Setting, SizeTimes] = {
        setting: setting_times(searched, setting, setting.label, "quiet") for setting in compared_settings
    }
    labels = {setting: setting.label for setting in {trial.setting for trial in trials}}
    points = [
        SearchPoint(
            number=t.number,
            phase=t.phase,
            score_us=t.score_us,
            outcome=t.result.outcome,
            label=labels[t.setting] if t.policy is None else t.label,
        )
        for t in trials
        if t.phase is not Phase.PROVE
    ]
    launched = {launch.arm for launch in evidence.launches}
    gain = summary.gain if summary else None
    verdict = summary.use.proven.verdict if summary else None
    return StudyView(
        study=study,
        recommendation=recommendation,
        heading=_heading(study, recommendation, summary, best_us=scores.get(best), default_us=scores.get(DEFAULT)),
        compared=compared,
        rows=rows,
        interpolated=interpolated_messages(proof if compared == "policy" else searched, study.workload),
        blocks=blocks_of(evidence, study.workload),
        arms=tuple(arm for arm in Arm if arm in launched),
        history=search_chart(points, scores.get(DEFAULT), evidence.launches, per=study.workload.per),
        summary=summary,
        cost=describe_cost(study, trials, gain),
        wins=wins_chart(study, policy, default, candidates),
        curves=curves_of(study, shown) if default.of else (),
        shares=shares_chart(study, rows, compared),
        proof=proof_charts(
            average_unchanged(evidence.whole_blocks(arm), study.workload),
            min_effect=verdict.min_effect if verdict else MIN_EFFECT,
            per=study.workload.per,
        ),
        costs=cost_rows(study, trials) if trials else (),
        payback=payback_chart(gain),
        decisions=decisions_of(study, trials, recommendation, scores),
    )


def _candidates(scores: Mapping[Setting, float], policy: Policy | None) -> list[Setting]:
    """Return the settings whose times are compared size by size; `MOST_CANDIDATES` at most.

    The best of each algorithm, protocol and number of channels first, the fastest per step before others.
    """
    wanted = {(rule.algorithm, rule.protocol, rule.channels) for rule in (policy.rules if policy else ())}
    ordered = sorted((one for one in scores if one != DEFAULT), key=lambda one: scores[one])
    best: dict[tuple[object, ...], Setting] = {}
    for setting in ordered:
        best.setdefault((setting.algorithm, setting.protocol, setting.channels), setting)
    families: dict[tuple[object, ...], Setting] = {}
    for setting in ordered:
        families.setdefault((setting.algorithm, setting.protocol), setting)
    first = [setting for key, setting in best.items() if key in wanted]
    return list(dict.fromkeys([*first, *families.values(), *best.values()]))[:MOST_CANDIDATES]


def _samples(trials: Sequence[Trial], often: Collection[Setting], rarely: Collection[Setting]) -> list[Trial]:
    """Return trials of some settings, evenly over the study where there are many: by number, each once."""
    mine: dict[Setting, list[Trial]] = {setting: [] for setting in (*often, *rarely)}
    for trial in trials:
        if trial.tries_setting and trial.score_us is not None and trial.setting in mine:
            mine[trial.setting].append(trial)
    picked = []
    for setting, found in mine.items():
        most = MOST_REPEATS if setting in often else _REPEATS_OF_A_CANDIDATE
        picked += found[:: max(1, -(-len(found) // most))]
    return sorted(picked, key=lambda trial: trial.number)


def _heading(
    study: Study,
    recommendation: Recommendation | None,
    summary: StudySummary | None,
    *,
    best_us: float | None,
    default_us: float | None,
) -> Heading:
    if recommendation and summary:
        if recommendation.stale:
            sentence = (
                f"No longer served: {recommendation.stale}. Tune again, or run `ncclt recheck` once it is repaired."
            )
            return Heading(status="stale", label="stale", sentence=sentence)
        return _verdict_heading(summary.use.proven.verdict, label=recommendation.label)
    so_far = ""
    if best_us and default_us and best_us < default_us:
        so_far = f" The best setting so far would be {format_speedup(default_us / best_us)}, not yet proven."
    elif default_us:
        so_far = " Nothing was faster than the default so far."
    if study.state is StudyState.RUNNING:
        return Heading(status="open", label="searching", sentence=f"The search is running.{so_far}")
    if study.state is StudyState.INTERRUPTED:
        again = f"the same `ncclt tune` command resumes it; its name is {study.name}."
        return Heading(status="open", label="interrupted", sentence=f"The search was interrupted; {again}{so_far}")
    return Heading(status="open", label="no verdict", sentence=f"It ended without a verdict. {study.reason}".strip())


def _verdict_heading(verdict: Verdict, *, label: str) -> Heading:
    if verdict.decision is Decision.TUNED:
        gain = f"{format_speedup(verdict.speedup)} as fast as the NCCL default, {format_saving(verdict)} less"
        how = "In the simulation" if label == "SIMULATED" else "On the recorded times" if label else "Proven"
        return Heading(
            status="tuned", label="demonstration" if label else "tuned", sentence=f"{how} {gain} communication time."
        )
    if verdict.decision is Decision.UNDECIDED:
        sentence = f"Keeping the NCCL default: the proof ended undecided: {verdict.reason}."
        return Heading(status="undecided", label="undecided", sentence=sentence)
    sentence = "Keeping the NCCL default: no policy beat it by the minimum effect."
    return Heading(status="keep-default", label="keep default", sentence=sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The arms that were measured in turns.

    Attributes:
        number: from 0.
        launches: of each arm, in order; one measurement of a whole arm each.
        order: the arms as they ran, first to last.
        ratios: default over each arm, as the verdict counts it; above 1 = the arm is faster. Only of whole blocks.
    """

    number: int
    launches: Mapping[Arm, tuple[ArmLaunch, ...]]
    order: tuple[Arm, ...]
    ratios: Mapping[Arm, float]


def blocks_of(evidence: LaunchEvidence, workload: Workload) -> tuple[Block, ...]:
    """Return the blocks of the last verification, in order; empty before it began."""
    ratios: dict[tuple[int, Arm], float] = {}
    for arm in {launch.arm for launch in evidence.launches} - {Arm.DEFAULT}:
        pairs = average_unchanged(evidence.whole_blocks(arm), workload)
        for first in range(0, len(pairs), LAUNCHES_PER_BLOCK):
            times_us = [_times_us(side) for side in zip(*pairs[first : first + LAUNCHES_PER_BLOCK], strict=True)]
            ratios[pairs[first][1].block // LAUNCHES_PER_BLOCK, arm] = block_speedups(*times_us)[0]
    numbers = sorted({launch.block // LAUNCHES_PER_BLOCK for launch in evidence.launches})
    return tuple(_block(evidence, number, ratios) for number in numbers)


def _times_us(launches: Iterable[ArmLaunch]) -> tuple[float, ...]:
    return tuple(launch.time_us for launch in launches if launch.time_us is not None)


def _block(evidence: LaunchEvidence, number: int, ratios: Mapping[tuple[int, Arm], float]) -> Block:
    mine = [launch for launch in evidence.launches if launch.block // LAUNCHES_PER_BLOCK == number]
    arms = {launch.arm for launch in mine}
    return Block(
        number=number,
        launches={arm: tuple(launch for launch in mine if launch.arm is arm) for arm in arms},
        order=tuple(launch.arm for launch in mine),
        ratios={arm: ratios[number, arm] for arm in arms if (number, arm) in ratios},
    )
