"""The end of a study, the same wherever it is shown: verdict, gain, the one command, and why it is that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclt.core.attestation import Form
from ncclt.core.message import Message
from ncclt.core.policy import uniform_policy
from ncclt.core.recommendation import ORIGIN_WORDS, Decision, Recommendation, Verdict
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Arm, Study, Trial, median_scores
from ncclt.core.workload import LEFT_OUT, Workload
from ncclt.deliver.use import DeliveredForm, use_of
from ncclt.nccl.compile import compile_policy
from ncclt.prove.evidence import LaunchEvidence
from ncclt.prove.parts import PartGain, measure_parts
from ncclt.prove.payback import Gain, ceiling_words, cost_words, estimate_gain, step_gain
from ncclt.prove.proof import left_alike, proof_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """What a study with a verdict says at its end.

    Attributes:
        label: the mark of results that were not measured here; empty = they were.
        verdict: one sentence.
        use: the form in which the result is used, with its command.
        gain: what that saves; None = nothing.
        worth: (word, sentence) about the gain: what could be saved at most, what was searched, what is saved, what that
            is worth.
        other: about the other form in which it could be delivered; empty where there is nothing to say.
        notes: what the reader must know of the figures, one sentence each: what was left out, and what the proof took
            from the policy.
        parts: gain of each part of a merged workload.
    """

    label: str
    verdict: str
    use: DeliveredForm
    gain: Gain | None
    worth: tuple[tuple[str, str], ...]
    other: str
    notes: tuple[str, ...] = ()
    parts: tuple[PartGain, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return its facts as fields of the document of a study."""
        gain, use = self.gain, self.use
        return {
            "use": {
                "form": use.form.value if use.form else None,
                "command": use.command or None,
                "speedup": use.proven.verdict.speedup if use.form else None,
                "interval": use.proven.verdict.to_document()["interval"] if use.form else None,
                "why": self.other or use.why,
            },
            "notes": list(self.notes),
            "gain_ms": gain.saved_us[0] / 1e3 if gain else None,
            "gain_ms_interval": [us / 1e3 for us in gain.saved_us[1:]] if gain else None,
            "step_gain_ms": gain.shorter_us[0] / 1e3 if gain and gain.is_step_known else None,
            "steps_per_day": gain.steps_per_day if gain else None,
            "gpu_hours_per_week": gain.gpu_hours_per_week if gain else None,
            "payback_hours": gain.payback_hours if gain else None,
            "payback_steps": gain.payback_steps[0] if gain and gain.payback_steps else None,
            **({"parts": [part.to_document() for part in self.parts]} if self.parts else {}),
        }


def summarize_study(
    study: Study,
    trials: Sequence[Trial],
    found: Recommendation,
    *,
    source: str = "",
    build: bool = False,
    steps_per_day: int | None = None,
) -> StudySummary:
    """Return the end of a study.

    Args:
        study: the study.
        trials: all of them.
        found: what it published.
        source, build: as for `use_of`.
        steps_per_day: as for `estimate_gain`.
    """
    use = use_of(found, source=source, build=build)
    verdict = use.proven.verdict
    # A demonstration saves nothing, and neither does what is no longer served.
    is_used = not (study.label or found.stale)
    gain = estimate_gain(study, trials, verdict, steps_per_day=steps_per_day) if is_used else None
    told = {
        "at most": ceiling_words(study.workload),
        "searched": found.coverage.words if found.coverage and verdict.decision is Decision.KEEP_DEFAULT else "",
        "gain": gain.words if gain else "",
        "worth": gain.worth if gain else "",
        "cost": cost_words(study, trials, gain),
    }
    return StudySummary(
        label=study.label,
        verdict=_verdict(found, use, study.workload),
        use=use,
        gain=gain,
        worth=tuple((word, sentence) for word, sentence in told.items() if sentence),
        other=_other(study, trials, found, use),
        notes=(
            *filter(None, [study.workload.provenance.detail.get(LEFT_OUT)]),
            *proof_notes(trials, study.workload, found.table),
        ),
        parts=measure_parts(use, trials, study.workload),
    )


def proven_times_us(
    evidence: LaunchEvidence, arm: Arm, verdict: Verdict, workload: Workload
) -> tuple[dict[Message, float], dict[Message, float]]:
    """Return the time of one call of each message by the default and by an arm, µs, so that they add up to the verdict.

    A median of sums is not the sum of medians, and the speed-up is estimated from pairs of launches: the medians of the
    messages are scaled to the default's time per step, and to this time divided by the speed-up. What the verdict
    counts as the same on both sides (`ncclt.prove.proof.counted`) is the same here.
    """
    default_us, arm_us = evidence.message_times_us(Arm.DEFAULT), evidence.message_times_us(arm)
    if not verdict.blocks:
        return default_us, arm_us
    calls = {c.message: c.calls_per_step for c in workload.messages}
    same = left_alike(evidence.whole_blocks(arm), workload)
    both_us = {m: (default_us[m] + arm_us[m]) / 2 for m in same}
    default_us = scaled_to(verdict.default_us, default_us | both_us, workload)
    left_us = {m: default_us[m] for m in same}
    rest_us = verdict.paired_policy_us - sum(calls[m] * time_us for m, time_us in left_us.items())
    if rest_us <= 0:  # noise is larger than what the policy changes
        return default_us, scaled_to(verdict.paired_policy_us, arm_us | both_us, workload)
    changed_us = {m: time_us for m, time_us in arm_us.items() if m not in same}
    return default_us, scaled_to(rest_us, changed_us, workload) | left_us


def scaled_to(total_us: float, times_us: Mapping[Message, float], workload: Workload) -> dict[Message, float]:
    """Return times of one call of each message, µs, in the same ratios so that a step takes this long."""
    found_us = sum(c.calls_per_step * times_us[c.message] for c in workload.messages if c.message in times_us)
    return {message: time_us * total_us / (found_us or total_us) for message, time_us in times_us.items()}


def _verdict(found: Recommendation, use: DeliveredForm, workload: Workload) -> str:
    verdict, what = use.proven.verdict, f"{found.model} on {found.cluster}"
    low, high = verdict.interval
    evidence = f"95 % interval {low:.3f} to {high:.3f}, {verdict.blocks} blocks"
    if found.label and verdict.decision is Decision.TUNED:
        origin = ORIGIN_WORDS[found.origin]
        return f"demonstration: {verdict.speedup:.2f}x on {found.cluster}, {origin} ({evidence})"
    if found.label:
        return f"demonstration: {verdict.decision} on {found.cluster}, {ORIGIN_WORDS[found.origin]}: {verdict.reason}"
    if verdict.decision is not Decision.TUNED:
        return f"{verdict.decision} for {what}: {verdict.reason}"
    if (saved := step_gain(workload, verdict.speedup)) is not None:
        most = "at most " if workload.exposed_us is None else ""
        return (
            f"tuned: steps of {what} are {most}{saved * 100:.2g} % shorter, communication {verdict.speedup:.3f}x as "
            f"fast as with the NCCL default ({evidence})"
        )
    return f"tuned: {what} communicates {verdict.speedup:.3f}x as fast as with the NCCL default ({evidence})"


def _other(study: Study, trials: Sequence[Trial], found: Recommendation, use: DeliveredForm) -> str:
    """Say what the form that is not used would give; empty where none is used."""
    table, variables = found.table.verdict, found.variables.verdict if found.variables else None
    if use.form is Form.VARIABLES:
        if table.decision is not Decision.TUNED:
            return ""
        return f"the table per size measured {table.speedup:.3f}x, which is not proven to be more"
    if use.form is None:
        return ""
    if variables is None:
        return f"variables alone cannot: {_why_no_variables(study, trials)}"
    if variables.decision is Decision.TUNED:
        return f"variables alone give {variables.speedup:.3f}x"
    return f"variables alone were not proven: {variables.reason}"


def _why_no_variables(study: Study, trials: Sequence[Trial]) -> str:
    """Say what the best single setting took, and why variables do not deliver it."""
    scores = median_scores(trials)
    default_us = scores.pop(DEFAULT, 0.0)
    if not scores or not default_us:  # early studies, whose launches are not all kept
        return "no policy that they can express was proven"
    best_us, _, best = min((time_us, setting.digest(), setting) for setting, time_us in scores.items())
    took = f"took {best_us / 1e3:.4g} ms {study.workload.per} before the proof, the NCCL default {default_us / 1e3:.4g}"
    figures = f"{best.label} on all sizes {took}"
    if best_us >= default_us:
        return f"no single setting is faster; the best, {figures}"
    version, collectives = study.cluster.version, study.workload.collectives
    forced = uniform_policy(best, collectives, version=version)
    reasons = compile_policy(forced, version=version, collectives=collectives).reasons
    return f"{figures}, but {reasons[0] if reasons else 'that was too little, or was not confirmed'}"
