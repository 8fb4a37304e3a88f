"""The content of the page of one study, computed before any HTML."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ncclt.core.attestation import Form
from ncclt.core.message import Message
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial
from ncclt.prove.ending import Ending, ending_of
from ncclt.prove.evidence import ArmLaunch, LaunchEvidence, collect_evidence
from ncclt.prove.payback import cost_words
from ncclt.prove.verdict import block_speedups
from ncclt_api.pages.charts import SearchPoint, history_chart, interval_chart, interval_reach, messages_chart
from ncclt_api.pages.jobs import NO_JOBS, Jobs
from ncclt_api.pages.message_rows import MessageLine, best_setting_rows, interpolated_messages, policy_rows
from ncclt_api.pages.wording import format_saving, format_speedup

_LAUNCHES_PER_BLOCK = 2
"""Each arm is launched twice in a block."""

TRIALS_PER_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The verdict in words.

    Attributes:
        mood: `tuned`, `keep-default`, `undecided`, `failed` (stale) or `open`: the colour.
        word: one or two words for a badge.
        sentence: what it means.
    """

    mood: str
    word: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """One form in which the result is delivered.

    Attributes:
        name: what it is.
        arm: its name in the verification.
        policy_verdict: its policy and verdict; None = it cannot be expressed in this form.
        picture: speed-up and interval.
    """

    name: str
    arm: Arm
    policy_verdict: PolicyVerdict | None
    picture: Markup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPage:
    """A part of the trials.

    Attributes:
        items: this part, by number.
        number, pages: this page and how many there are, from 1.
        total, failed: number of all trials, and of those that failed.
    """

    items: tuple[Trial, ...]
    number: int
    pages: int
    total: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """The content of the page.

    Attributes:
        compared: what is compared with the default in `rows`: the policy, or the best setting so far.
        interpolated: messages whose size was not itself measured.
        arms: what the verification measured.
        jobs: what real jobs reported about the recommendation.
        ending: what the recommendation is worth, and the one command that uses it; None = there is none.
        cost: GPU time of all launches and when it is saved again, as text; empty where nothing was launched.
    """

    study: Study
    recommendation: Recommendation | None
    heading: Heading
    forms: tuple[FormView, ...]
    compared: str
    rows: tuple[MessageLine, ...]
    interpolated: frozenset[Message]
    blocks: tuple[Block, ...]
    arms: tuple[Arm, ...]
    history: Markup | None
    messages: Markup | None
    trials: TrialPage
    jobs: Jobs
    ending: Ending | None
    cost: str


def study_view(
    study: Study,
    trials: Sequence[Trial],
    recommendation: Recommendation | None,
    *,
    server: str,
    page: int = 1,
    jobs: Jobs = NO_JOBS,
) -> StudyView:
    """Return the content of the page of a study.

    Args:
        study: the study.
        trials: all its trials, by number.
        recommendation: its newest revision; None = none yet.
        server: address at which this service was reached, for the command shown.
        page: page of the trials, from 1; beyond the last means the last.
        jobs: what real jobs reported about the recommendation.
    """
    search = [t for t in trials if t.phase is Phase.SEARCH]
    scores = _median_scores(trials)
    best = min(scores, key=lambda setting: scores[setting], default=DEFAULT)
    evidence = collect_evidence(trials)
    # A verdict without a verification means that the search found nothing worth proving.
    source = f" --server {shlex.quote(server)}"
    ending = ending_of(study, trials, recommendation, source=source) if recommendation else None
    arm = Arm.VARIABLES if ending and ending.use.form is Form.VARIABLES else Arm.TABLE
    if ending and evidence.times_us(arm):
        compared, rows = "policy", policy_rows(study, evidence, ending.use.proven, arm)
    else:
        compared, rows = "best setting", best_setting_rows(study, trials, best)
    points = [
        SearchPoint(number=t.number, score_us=t.score_us, outcome=t.result.outcome, label=t.setting.label)
        for t in search
    ]
    blocks = blocks_of(evidence)
    measured = {launch.arm for launch in evidence.launches}
    return StudyView(
        study=study,
        recommendation=recommendation,
        heading=_heading(study, recommendation, ending, best_us=scores.get(best), default_us=scores.get(DEFAULT)),
        forms=_forms(recommendation) if recommendation else (),
        compared=compared,
        rows=rows,
        interpolated=interpolated_messages(trials),
        blocks=blocks,
        arms=tuple(arm for arm in Arm if arm in measured),
        history=history_chart(points, scores.get(DEFAULT)),
        messages=messages_chart(rows, policy_name=compared),
        trials=_page_of(trials, page),
        jobs=jobs,
        ending=ending,
        cost=cost_words(study, trials, ending.gain if ending else None),
    )


def _median_scores(trials: Sequence[Trial]) -> dict[Setting, float]:
    """Return the median communication time per step of each setting outside the verification, µs."""
    scores: dict[Setting, list[float]] = {}
    for trial in trials:
        if trial.phase is not Phase.VERIFY and trial.score_us is not None:
            scores.setdefault(trial.setting, []).append(trial.score_us)
    return {setting: statistics.median(found) for setting, found in scores.items()}


def _page_of(trials: Sequence[Trial], page: int) -> TrialPage:
    pages = max(1, -(-len(trials) // TRIALS_PER_PAGE))
    number = min(page, pages)
    return TrialPage(
        items=tuple(trials[(number - 1) * TRIALS_PER_PAGE : number * TRIALS_PER_PAGE]),
        number=number,
        pages=pages,
        total=len(trials),
        failed=sum(1 for trial in trials if trial.score_us is None),
    )


def _heading(
    study: Study,
    recommendation: Recommendation | None,
    ending: Ending | None,
    *,
    best_us: float | None,
    default_us: float | None,
) -> Heading:
    if recommendation and ending:
        if recommendation.stale:
            sentence = f"No longer served: {recommendation.stale}. Tune again, or run ncclt check once it is repaired."
            return Heading(mood="failed", word="stale", sentence=sentence)
        return _verdict_heading(ending.use.proven.verdict, label=recommendation.label)
    so_far = ""
    if best_us and default_us and best_us < default_us:
        so_far = f" The best setting so far would be {format_speedup(default_us / best_us)}, not yet proven."
    elif default_us:
        so_far = " Nothing was faster than the default so far."
    if study.state is StudyState.RUNNING:
        return Heading(mood="open", word="searching", sentence=f"The search is running.{so_far}")
    if study.state is StudyState.INTERRUPTED:
        again = f"the same `ncclt tune` command resumes it; its name is {study.name}."
        return Heading(mood="open", word="interrupted", sentence=f"The search was interrupted; {again}{so_far}")
    return Heading(mood="open", word="no verdict", sentence=f"It ended without a verdict. {study.reason}".strip())


def _verdict_heading(verdict: Verdict, *, label: str) -> Heading:
    if verdict.decision is Decision.TUNED:
        gain = f"{format_speedup(verdict.speedup)} against NCCL's own choice, {format_saving(verdict)} less"
        how = "In the simulation" if label == "SIMULATED" else "On the recorded times" if label else "Proven"
        return Heading(mood="tuned", word="tuned", sentence=f"{how} {gain} communication time.")
    if verdict.decision is Decision.UNDECIDED:
        sentence = f"NCCL's own choice stays: the proof ended before it was decided. {verdict.reason}."
        return Heading(mood="undecided", word="undecided", sentence=sentence)
    sentence = "NCCL's own choice stays: nothing was proven to be faster by more than the least effect that counts."
    return Heading(mood="keep-default", word="keep default", sentence=sentence)


def _forms(recommendation: Recommendation) -> tuple[FormView, ...]:
    plain = recommendation.variables
    reach = interval_reach(
        policy_verdict.verdict.interval for policy_verdict in (recommendation.table, plain) if policy_verdict
    )
    table = FormView(
        name="tuner table",
        arm=Arm.TABLE,
        policy_verdict=recommendation.table,
        picture=_picture(recommendation.table, "table", reach=reach),
    )
    variables = FormView(
        name="plain variables",
        arm=Arm.VARIABLES,
        policy_verdict=plain,
        picture=_picture(plain, "variables", reach=reach) if plain else None,
    )
    return (variables, table)


def _picture(policy_verdict: PolicyVerdict, form: str, *, reach: float) -> Markup | None:
    verdict = policy_verdict.verdict
    return interval_chart(verdict.speedup, verdict.interval, id=f"interval-{form}", reach=reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The arms that were measured in turns.

    Attributes:
        number: from 0.
        launches: of each arm, in order; one measurement of a whole arm each.
        order: the arms as they ran, first to last.
    """

    number: int
    launches: Mapping[Arm, tuple[ArmLaunch, ...]]
    order: tuple[Arm, ...]

    def ratio(self, arm: Arm) -> float | None:
        """Return default over arm, as the verdict counts it; above 1 = the arm is faster; None while incomplete."""
        default, other = self._times_us(Arm.DEFAULT), self._times_us(arm)
        if len(default) != _LAUNCHES_PER_BLOCK or len(other) != _LAUNCHES_PER_BLOCK:
            return None
        return block_speedups(default, other)[0]

    def _times_us(self, arm: Arm) -> tuple[float, ...]:
        return tuple(launch.time_us for launch in self.launches.get(arm, ()) if launch.time_us is not None)


def blocks_of(evidence: LaunchEvidence) -> tuple[Block, ...]:
    """Return the blocks of the last verification, in order; empty before it began."""
    numbers = sorted({launch.block // _LAUNCHES_PER_BLOCK for launch in evidence.launches})
    return tuple(_block(evidence, number) for number in numbers)


def _block(evidence: LaunchEvidence, number: int) -> Block:
    mine = [launch for launch in evidence.launches if launch.block // _LAUNCHES_PER_BLOCK == number]
    arms = {launch.arm for launch in mine}
    return Block(
        number=number,
        launches={arm: tuple(launch for launch in mine if launch.arm is arm) for arm in arms},
        order=tuple(launch.arm for launch in mine),
    )
