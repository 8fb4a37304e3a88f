"""Summary of a study, the same wherever it is shown: headline, savings, the one command, gain per part and message."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ncclt.core.attestation import Form
from ncclt.core.documents import Documented, Shape
from ncclt.core.duration import format_duration
from ncclt.core.message import Message
from ncclt.core.policy import uniform_policy
from ncclt.core.recommendation import ORIGIN_WORDS, Decision, Recommendation, Verdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Study, Trial, median_scores
from ncclt.core.workload import LEFT_OUT, MessageCalls, Workload, WorkloadPart
from ncclt.deliver.render.delivery import DeliveredForm, choose_form, compare_numerics
from ncclt.nccl.compile import compile_policy
from ncclt.prove.confidence import estimate_interval
from ncclt.prove.evidence import ArmLaunch, LaunchEvidence, collect_evidence
from ncclt.prove.levels import INTERVAL_ERROR
from ncclt.prove.payback import Gain, describe_ceiling, describe_cost, estimate_gain, step_gain
from ncclt.prove.proof import SeenBits, average_unchanged, compare_seen_bits, describe_proof, find_unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGain(Documented):
    """Gain of the proven policy for one part of a merged workload.

    Attributes:
        name, weight: of the part.
        default_us: communication time of one step of the part under the default, µs; None = no proof.
        speedup: of the policy; None = no proof.
        interval: 95 % interval of the speed-up; None = no proof.
        note: reason for a missing proof, or the share of the part it leaves out; empty = it covers the whole part.
    """

    SHAPE: ClassVar = Shape(unbounded=("interval",), computed=(("policy_us", "policy_us", "speedup"),))

    name: str
    weight: float
    default_us: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def policy_us(self) -> float | None:
        """Return the communication time of one step of the part under the policy, µs, as the speed-up gives it."""
        return self.default_us / self.speedup if self.default_us is not None and self.speedup is not None else None


def measure_parts(use: DeliveredForm, trials: Sequence[Trial], workload: Workload) -> tuple[PartGain, ...]:
    """Return the gain of every part of a workload; empty where it was not merged.

    The pairs of launches are those of the verdict, each summed over the calls of one part. As in the verdict, messages
    that the policy leaves to NCCL count the same on both sides (`ncclt.prove.proof.average_unchanged`).

    Args:
        workload: of the study, placed and cut to what can be measured there.
    """
    if not workload.parts:
        return ()
    evidence = collect_evidence(trials)
    blocks = evidence.whole_blocks(evidence.proven_arm(use.form)) if use.proven.verdict.blocks else ()
    return tuple(_measure_part(part, blocks, workload) for part in workload.parts)


def _measure_part(part: WorkloadPart, blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], workload: Workload) -> PartGain:
    sent = {calls.message for calls in workload.messages}
    messages = tuple(calls for calls in part.messages if calls.message in sent)
    if not blocks or not messages:
        why = "none of its messages can be measured here" if blocks else "no A/B test"
        return PartGain(name=part.name, weight=part.weight, note=f"not validated: {why}")

    def cut(launch: ArmLaunch) -> ArmLaunch:
        return replace(launch, time_us=sum(c.calls_per_step * launch.message_us[c.message] for c in messages))

    pairs = average_unchanged(
        [(cut(default), cut(policy)) for default, policy in blocks], replace(workload, messages=messages)
    )
    times_us = [(default.time_us or 0.0, policy.time_us or 0.0) for default, policy in pairs]
    interval = estimate_interval([math.log(default / policy) for default, policy in times_us], error=INTERVAL_ERROR)
    lacking = len(part.messages) - len(messages)
    return PartGain(
        name=part.name,
        weight=part.weight,
        default_us=statistics.median(default for default, _ in times_us),
        speedup=interval.estimate,
        interval=(interval.low, interval.high),
        note=f"without {lacking} of its {len(part.messages)} messages, which cannot be measured here"
        if lacking
        else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """Result of a study with a verdict, as every command, page and document shows it.

    Attributes:
        study: its id.
        label: mark of results that were not measured here; empty = they were.
        headline: one sentence.
        use: the form in which the result is used, with its command.
        gain: savings; None = nothing is saved.
        facts: (label, sentence) about the result, most important first.
        other: about the other form in which it could be delivered; empty where there is nothing to say.
        warnings: limits of the result that change what a reader may conclude from it.
        notes: further remarks: how the proof was made, and what it took from the policy.
        parts: gain of each part of a merged workload.
    """

    study: str
    label: str
    headline: str
    use: DeliveredForm
    gain: Gain | None
    facts: tuple[tuple[str, str], ...]
    other: str
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[PartGain, ...] = ()

    @property
    def decision(self) -> Decision:
        """Return the decision on the form that is used."""
        return self.use.proven.verdict.decision

    def lines(self, *, again: str, source: str = "", details: bool = False) -> list[tuple[str, str]]:
        """Return the result as (label, sentence), most important first; the headline is not among them.

        Args:
            again: the command that continues an undecided study.
            source: options that name the store, with a space before each.
            details: all facts, not only those that a decision needs.
        """
        is_tuned, is_exhaustive = self.decision is Decision.TUNED, "Exhaustive search" in dict(self.facts)
        hidden = {"Limit", "" if is_tuned else "Cost", "Searched" if is_tuned or is_exhaustive else ""}
        shown = [fact for fact in self.facts if details or fact[0] not in hidden]
        if any(part.speedup for part in self.parts) and not details:
            gains = (f"{part.name} {part.speedup:.2f}x" if part.speedup else f"{part.name} -" for part in self.parts)
            shown.append(("Parts", ", ".join(gains)))
        shown += [("Warning", sentence) for sentence in self.warnings]
        if self.use.command:
            shown.append(("Use", self.use.command))
        elif self.decision is Decision.UNDECIDED:
            shown.append(("Continue", again))
        elif self.decision is Decision.TUNED:
            shown.append(("Next", self.use.why))
        shown.append(("Details", f"ncclt studies show {self.study}{source}"))
        if self.decision is not Decision.KEEP_DEFAULT or details:
            page = f"http://127.0.0.1:8080/studies/{self.study}"
            shown.append(("Page", f"{page} while `ncclt serve{source}` runs"))
        return shown

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
            "notes": [*self.warnings, *self.notes],
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
    recommendation: Recommendation,
    *,
    use: DeliveredForm | None = None,
    steps_per_day: int | None = None,
    exhaustive: tuple[float, float] | None = None,
) -> StudySummary:
    """Summarize a study that has a verdict.

    Args:
        use: the form in which the result is used; None = that of `choose_form`.
        steps_per_day: as for `estimate_gain`.
        exhaustive: speed-ups of the best recorded policy and of the one that was found; None = nothing was recorded.
    """
    use = use or choose_form(recommendation)
    verdict = use.proven.verdict
    # A demonstration saves nothing, and neither does what is no longer served.
    is_used = not (study.label or recommendation.stale)
    # Savings count from what the job runs today.
    over = use.proven.over_today
    saving = over if over and verdict.decision is over.decision is Decision.TUNED else verdict
    is_used = is_used and use.proven.beats_today
    gain = estimate_gain(study, trials, saving, steps_per_day=steps_per_day) if is_used else None
    numerics = ""
    if use.form:
        numerics = compare_numerics(
            recommendation, use.proven.effective, by_variables=use.form is Form.VARIABLES
        ).sentence
        bits = compare_seen_bits(trials, Arm.VARIABLES if use.form is Form.VARIABLES else Arm.TABLE)
        numerics += f"; {bits.sentence}" if study.deterministic or bits != SeenBits() else ""
    facts = {
        "Reason": "" if verdict.decision is Decision.TUNED else verdict.reason,
        "Today": recommendation.today.words if recommendation.today else "",
        "Saves": gain.words if gain else "",
        "Worth": gain.worth if gain else "",
        "Numerics": numerics if study.deterministic else "",
        "Limit": describe_ceiling(study.workload),
        "Searched": _describe_search(recommendation),
        "Exhaustive search": f"{exhaustive[0]:.3f}x. Found: {exhaustive[1]:.3f}x." if exhaustive else "",
        "Cost": describe_cost(study, trials, gain),
    }
    left_out = study.workload.provenance.detail.get(LEFT_OUT, "")
    rounded = describe_rounded(find_rounded(trials, study.workload))
    stale = f"stale, no longer served: {recommendation.stale}" if recommendation.stale else ""
    return StudySummary(
        study=study.id,
        label=study.label,
        headline=_build_headline(recommendation, use, study.workload),
        use=use,
        gain=gain,
        facts=tuple((word, sentence) for word, sentence in facts.items() if sentence),
        other=_describe_other_form(study, trials, recommendation, use),
        warnings=tuple(filter(None, (stale, left_out, rounded))),
        notes=tuple(filter(None, (*describe_proof(trials, study.workload, recommendation.table), numerics))),
        parts=measure_parts(use, trials, study.workload),
    )


def _describe_search(recommendation: Recommendation) -> str:
    if recommendation.coverage is None or not recommendation.deterministic:
        return recommendation.coverage.summary if recommendation.coverage else ""
    kinds = [sorted(c for c in recommendation.collectives if c.is_reduction is adds) for adds in (False, True)]
    searched, skipped = (", ".join(names) or "none" for names in kinds)
    return f"{recommendation.coverage.summary}; on {searched} alone, {skipped} left to NCCL (--deterministic)"


def find_rounded(trials: Iterable[Trial], workload: Workload) -> dict[Message, int]:
    """Return the messages of a workload that were measured at another size, with that size, bytes."""
    measured = {m.message: m.measured_bytes for t in trials for m in t.result.measurements if m.measured_bytes}
    return {calls.message: measured[calls.message] for calls in workload.messages if calls.message in measured}


def describe_rounded(rounded: Mapping[Message, int]) -> str:
    """Name the messages that were measured at another size, in one sentence; empty where none was."""
    if not rounded:
        return ""
    shown = [f"{m.collective} of {m.size_bytes:,} B at {size:,} B" for m, size in list(rounded.items())[:_SHOWN_SIZES]]
    if len(rounded) > _SHOWN_SIZES:
        shown.append(f"{len(rounded) - _SHOWN_SIZES} more")
    unaligned = any(message.collective.has_rank_parts and not message.is_aligned for message in rounded)
    slower = "; the exact size can be slower, because its parts are not aligned to 16 B" if unaligned else ""
    exact = sum(message.is_divisible for message in rounded)
    where = "sends exact sizes" if exact == len(rounded) else f"sends {exact} of {len(rounded)} sizes exactly"
    remedy = (
        f"--benchmark torch_collectives {where}"
        if exact
        else "no benchmark sends sizes that are not divisible by ranks and dtype"
    )
    return f"measured at the nearest size that the benchmark can send: {', '.join(shown)}{slower}; {remedy}"


_SHOWN_SIZES = 3


def proven_times_us(
    evidence: LaunchEvidence, arm: Arm, verdict: Verdict, workload: Workload
) -> tuple[dict[Message, float], dict[Message, float]]:
    """Return the time of one call of each message by the default and by an arm, µs, so that they add up to the verdict.

    A median of sums is not the sum of medians, and the speed-up is estimated from pairs of launches: the medians of the
    messages are scaled to the default's time per step, and to this time divided by the speed-up. What the verdict
    counts as the same on both sides (`ncclt.prove.proof.average_unchanged`) is the same here.
    """
    default_us, arm_us = evidence.message_times_us(Arm.DEFAULT), evidence.message_times_us(arm)
    if not verdict.blocks:
        return default_us, arm_us
    calls = {c.message: c.calls_per_step for c in workload.messages}
    unchanged = find_unchanged(evidence.whole_blocks(arm), workload)
    both_us = {m: (default_us[m] + arm_us[m]) / 2 for m in unchanged}
    default_us = scale_times(verdict.default_us, default_us | both_us, workload)
    left_us = {m: default_us[m] for m in unchanged}
    rest_us = verdict.paired_policy_us - sum(calls[m] * time_us for m, time_us in left_us.items())
    if rest_us <= 0:  # noise is larger than what the policy changes
        return default_us, scale_times(verdict.paired_policy_us, arm_us | both_us, workload)
    changed_us = {m: time_us for m, time_us in arm_us.items() if m not in unchanged}
    return default_us, scale_times(rest_us, changed_us, workload) | left_us


def scale_times(total_us: float, times_us: Mapping[Message, float], workload: Workload) -> dict[Message, float]:
    """Return times of one call of each message, µs, in the same ratios so that a step takes this long."""
    found_us = sum(c.calls_per_step * times_us[c.message] for c in workload.messages if c.message in times_us)
    return {message: time_us * total_us / (found_us or total_us) for message, time_us in times_us.items()}


def _build_headline(recommendation: Recommendation, use: DeliveredForm, workload: Workload) -> str:
    search = " (deterministic search)" if recommendation.deterministic else ""
    verdict, job = use.proven.verdict, f"{recommendation.model} on {recommendation.cluster}{search}"
    demonstration = f" (demonstration on {ORIGIN_WORDS[recommendation.origin]} timings)" if recommendation.label else ""
    if verdict.decision is Decision.KEEP_DEFAULT and recommendation.today and recommendation.today.is_slower:
        return f"{verdict.decision}: for {job}, {recommendation.today.words}"
    if verdict.decision is Decision.KEEP_DEFAULT:
        return f"{verdict.decision}: keeping the NCCL default for {job}{demonstration}"
    if verdict.decision is Decision.UNDECIDED:
        return f"{verdict.decision}: no verdict yet for {job}{demonstration}"
    if verdict.decision is Decision.UNTRIED:
        return f"{verdict.decision}: no evidence yet for {job}"
    if recommendation.has_step_times:
        return f"{verdict.decision}: {job}: {verdict.reason}"
    low, high = verdict.interval
    faster = (
        f"communicates {verdict.speedup:.2f}x faster than the NCCL default "
        f"(95 % CI {low:.2f} to {high:.2f}, {verdict.blocks} blocks)"
    )
    if recommendation.label:
        return f"demonstration: {job} {faster}, on {ORIGIN_WORDS[recommendation.origin]} timings"
    over = use.proven.over_today
    if over is not None and not use.proven.beats_today:
        is_open = over.decision is Decision.UNDECIDED
        gain = "no verdict yet" if is_open else f"no gain of {over.min_effect * 100:.3g} % or more"
        return f"{verdict.decision}: {job} {faster}; over what you run today, {gain}"
    if over is not None and over.decision is Decision.TUNED:
        faster = (
            f"communicates {over.speedup:.2f}x faster than what you run today (95 % CI {over.interval[0]:.2f} to "
            f"{over.interval[1]:.2f}, {over.blocks} blocks), {verdict.speedup:.2f}x faster than the NCCL default"
        )
    saved = step_gain(workload, (over if over and over.decision is Decision.TUNED else verdict).speedup)
    bound = "at most " if workload.exposed_us is None else ""
    return f"{verdict.decision}: {job} {faster}{f'; steps are {bound}{saved * 100:.2g} % shorter' if saved else ''}"


def _describe_other_form(
    study: Study, trials: Sequence[Trial], recommendation: Recommendation, use: DeliveredForm
) -> str:
    """Return the result of the form that is not used; empty where none is used."""
    table, variables = (
        recommendation.table.verdict,
        recommendation.variables.verdict if recommendation.variables else None,
    )
    if use.form is Form.VARIABLES:
        if table.decision is not Decision.TUNED:
            return ""
        return f"the per-size table measured {table.speedup:.3f}x, no significant improvement over variables"
    if use.form is None:
        return ""
    if variables is None:
        return f"needs the tuner plugin: {_explain_missing_variables(study, trials)}"
    if variables.decision is Decision.TUNED:
        return f"variables alone: {variables.speedup:.3f}x"
    return f"variables alone were not validated: {variables.reason}"


def _explain_missing_variables(study: Study, trials: Sequence[Trial]) -> str:
    """Return the reason why the best single setting is not delivered by variables."""
    scores = median_scores(trials)
    default_us = scores.pop(DEFAULT, 0.0)
    if not scores or not default_us:
        return "no policy in plain variables was validated"
    best_us, _, best = min((time_us, setting.digest(), setting) for setting, time_us in scores.items())
    figures = f"{best.label}: {format_duration(best_us)} {study.workload.per}, default: {format_duration(default_us)}"
    if best_us >= default_us:
        return f"no single setting is faster for all sizes (best {figures})"
    version, collectives = study.cluster.version, study.workload.collectives
    forced = uniform_policy(best, collectives, version=version)
    reasons = compile_policy(forced, version=version, collectives=collectives).reasons
    return reasons[0] if reasons else f"the best single setting was not confirmed ({figures})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message, default against policy.

    Attributes:
        calls: the message and its calls per step.
        default_us, tuned_us: time of one call, µs, as `proven_times_us` gives it.
        setting: what the policy uses for it.
        interpolated: the landscape had no such size.
        measured_bytes: the size whose times these are, where the benchmark could not send the message's; None = it did.
    """

    calls: MessageCalls
    default_us: float
    tuned_us: float
    setting: Setting
    interpolated: bool = False
    measured_bytes: int | None = None

    @property
    def gain(self) -> float:
        """Return the share of time that the policy saves on this message."""
        return 1 - self.tuned_us / self.default_us

    @property
    def saved_us(self) -> float:
        """Return the time per step that the policy saves on this message, µs."""
        return self.calls.calls_per_step * (self.default_us - self.tuned_us)

    def to_document(self) -> dict[str, Any]:
        """Return the row as a JSON object, with bus bandwidths in GB/s."""
        message = self.calls.message
        return {
            "collective": message.collective.value,
            "dtype": message.dtype,
            "size_bytes": message.size_bytes,
            "group_size": message.group_size,
            "calls_per_step": self.calls.calls_per_step,
            "default_us": self.default_us,
            "tuned_us": self.tuned_us,
            "default_busbw_gbps": message.busbw_gbps(self.default_us),
            "tuned_busbw_gbps": message.busbw_gbps(self.tuned_us),
            "gain": self.gain,
            "saved_us_per_step": self.saved_us,
            "setting": self.setting.to_document(),
            "interpolated": self.interpolated,
            "measured_bytes": self.measured_bytes,
        }


def build_message_rows(
    recommendation: Recommendation, trials: Sequence[Trial], workload: Workload, default_us: Mapping[Message, float]
) -> tuple[MessageRow, ...]:
    """Build one row per message for the form in which a recommendation is used, most time per step first.

    Args:
        default_us: time of one call of each message by the default in search and confirmation, µs; it counts where the
            proof did not measure the policy.
    """
    use = choose_form(recommendation)
    evidence, policy, verdict = collect_evidence(trials), use.proven.policy, use.proven.verdict
    proven_us, tuned_us = proven_times_us(evidence, evidence.proven_arm(use.form), verdict, workload)
    own_us = {**default_us, **proven_us}
    if not verdict.blocks and verdict.default_us:  # nothing to prove: the times of the search, which the verdict sums
        own_us, tuned_us = scale_times(verdict.default_us, default_us, workload), {}
    interpolated = {m.message for t in trials for m in t.result.measurements if m.interpolated}
    rounded = find_rounded(trials, workload)
    rows = [
        MessageRow(
            calls=calls,
            default_us=own_us[calls.message],
            tuned_us=tuned_us.get(calls.message, own_us[calls.message]),
            setting=policy.setting_for(calls.message),
            interpolated=calls.message in interpolated,
            measured_bytes=rounded.get(calls.message),
        )
        for calls in workload.messages
    ]
    return tuple(sorted(rows, key=lambda row: -row.calls.calls_per_step * row.default_us))
