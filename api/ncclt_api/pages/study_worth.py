"""What a study cost, when that is paid back, and what was decided and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial, gpu_seconds
from ncclt.prove.payback import Gain
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line
from ncclt_api.pages.wording import NONE, format_hours, format_speedup, format_time

_PHASES = {Phase.SEARCH: "search", Phase.CONFIRM: "confirmation", Phase.PROVE: "proof"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """What the launches of one phase took.

    Attributes:
        phase: in words; `all` in the last row.
        launches, failed: how many.
        wall_s: their time, one after the other, s.
        gpu_hours: the same by all GPUs that they held.
    """

    phase: str
    launches: int
    failed: int
    wall_s: float
    gpu_hours: float


def cost_rows(study: Study, trials: Sequence[Trial]) -> tuple[PhaseCost, ...]:
    """Return the cost of each phase that launched anything, and of all."""

    def row(phase: str, mine: Sequence[Trial]) -> PhaseCost:
        return PhaseCost(
            phase=phase,
            launches=len(mine),
            failed=sum(1 for trial in mine if trial.score_us is None),
            wall_s=sum(trial.result.wall_s for trial in mine),
            gpu_hours=gpu_seconds(mine, study.cluster) / 3600,
        )

    parts = {phase: [trial for trial in trials if trial.phase is phase] for phase in _PHASES}
    return (*(row(_PHASES[phase], mine) for phase, mine in parts.items() if mine), row("all", trials))


def payback_chart(gain: Gain | None) -> Chart | None:
    """Draw the balance of GPU hours over the hours of training; None where nothing is paid back."""
    steps = gain.payback_steps if gain else None
    if gain is None or steps is None or gain.payback_hours is None:
        return None
    spent, hours = gain.cost_gpu_s / 3600, gain.payback_hours
    soonest = steps[1] / steps[0] * hours
    latest = steps[2] / steps[0] * hours if steps[2] is not None else None
    ends = [part * 2.5 * hours / 10 for part in range(11)]

    def balance(after: float | None) -> list[float]:
        return [-spent + (spent * at / after if after else 0.0) for at in ends]

    written = [
        (f"{at:.3g}", *(f"{balance(one)[i]:+.3g}" for one in (hours, latest, soonest))) for i, at in enumerate(ends)
    ]
    return Chart(
        id="payback-chart",
        title="When the study has paid for itself",
        description=f"{spent:,.3g} GPU hours were spent; they are saved again after {format_hours(hours)} of training.",
        x=Axis(label="training", unit="hours", low=0.0, high=ends[-1]),
        y=Axis(label="GPU hours", unit="number"),
        lines=[
            Line(
                label="GPU hours saved less those spent, with the 95 % interval",
                tone="good",
                x=ends,
                y=balance(hours),
                low=balance(latest),
                high=balance(soonest),
            )
        ],
        levels=[Level(at=0.0, label="paid back")],
        table=ChartTable(columns=("Hours of training", "GPU hours", "at the least", "at the most"), rows=written),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStep:
    """One decision of the study.

    Attributes:
        when: ISO time; empty where it was not stored.
        what: what was decided.
        why: on which figures.
    """

    when: str
    what: str
    why: str


def decisions_of(
    study: Study,
    trials: Sequence[Trial],
    recommendation: Recommendation | None,
    scores: Mapping[Setting, float],
) -> tuple[DecisionStep, ...]:
    """Return what was decided and why, in order, from what is stored.

    Args:
        study: the study.
        trials: all of them.
        recommendation: its newest revision.
        scores: median time per step of each setting before the proof, µs.
    """
    default_us = scores.get(DEFAULT)
    origin = f"{study.workload.name} on {study.cluster.name}, seed {study.seed}, {study.launcher}"
    steps = [DecisionStep(when=study.created, what="The study began", why=origin)]
    searched = [trial for trial in trials if trial.phase is Phase.SEARCH]
    failed = Counter(trial.result.outcome.value.replace("_", " ") for trial in searched if trial.score_us is None)
    if default_us is not None:
        first = next(t for t in trials if t.tries_setting and t.setting == DEFAULT and t.score_us is not None)
        again = sum(1 for trial in trials if trial.setting == DEFAULT and trial.tries_setting)
        why = f"{format_time(default_us)} of communication {study.workload.per}, the median of {again}"
        steps.append(DecisionStep(when=first.started, what="The NCCL default was measured", why=why))
    if failed:
        listed = ", ".join(f"{count} {outcome}" for outcome, count in failed.most_common())
        steps.append(DecisionStep(when="", what=f"{sum(failed.values())} launches of the search failed", why=listed))
    others = {setting: us for setting, us in scores.items() if setting != DEFAULT}
    if others and default_us:
        best = min(others, key=lambda setting: others[setting])
        when = next(t.started for t in trials if t.tries_setting and t.setting == best and t.score_us is not None)
        why = f"{best.label}: {format_speedup(default_us / others[best])} before any proof, of {len(others)} settings"
        steps.append(DecisionStep(when=when, what="The best single setting was found", why=why))
    if study.reason:
        steps.append(
            DecisionStep(when=searched[-1].started if searched else "", what="The search ended", why=study.reason)
        )
    confirmed = [trial for trial in trials if trial.phase is Phase.CONFIRM]
    if confirmed:
        count = len({trial.setting for trial in confirmed if trial.policy is None})
        parts = [f"{count} setting{'' if count == 1 else 's'}"] if count else []
        if tables := sum(trial.policy is not None for trial in confirmed):
            parts.append(f"the best policy as a whole ({tables} launch{'' if tables == 1 else 'es'})")
        why = f"{' and '.join(parts)}, since the fastest of many is fast by luck too"
        steps.append(DecisionStep(when=confirmed[0].started, what="The fastest were measured again", why=why))
    proof = [trial for trial in trials if trial.phase is Phase.PROVE]
    if proof:
        arms = ", ".join(arm.value for arm in Arm if any(trial.arm is arm for trial in proof))
        steps.append(DecisionStep(when=proof[0].started, what="The proof began", why=f"launched in turns: {arms}"))
    if recommendation:
        forms = {"tuner table": recommendation.table, "plain variables": recommendation.variables}
        for name, form in forms.items():
            if form is not None:
                what = f"As {name}: {recommendation.verdict_word(form.verdict).replace('-', ' ')}"
                steps.append(DecisionStep(when=recommendation.created, what=what, why=form.verdict.reason))
        tuned = any(form and form.verdict.decision is Decision.TUNED for form in forms.values())
        is_used = tuned and not recommendation.label
        why = "it can be served to jobs of this fingerprint" if is_used else "jobs keep the NCCL default"
        what = f"Revision {recommendation.revision} was published"
        steps.append(DecisionStep(when=recommendation.created, what=what, why=why))
        if recommendation.stale:
            steps.append(DecisionStep(when="", what="It is no longer served", why=recommendation.stale))
    elif study.state is StudyState.INTERRUPTED:
        steps.append(DecisionStep(when=study.updated, what="The study was interrupted", why=study.reason or NONE))
    return tuple(steps)
