"""From the stored trials of a study to the verdict of each arm, reproducibly: its coverage, proof and evidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ncclt.core.message import Message, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Coverage, Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Trial, median_scores
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.nccl.numerics import SameBits, compare_bits
from ncclt.prove.confidence import log_capital
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK, ArmLaunch, collect_evidence, last_proof
from ncclt.prove.probes import compare_probes, narrow_rules
from ncclt.prove.verdict import FALSE_VETO, Pairs, find_dropped_messages, judge, keep_default

WEIGHTY_SHARE = 0.01
"""Share of the default's time per step from which a message has a veto."""

_BY_SUMS = "no single launch can apply the whole table here, so the A/B test sums one launch per setting on both sides"

BASELINE_NAMES = {Arm.DEFAULT: "the NCCL default", Arm.TODAY: "what you run today"}

EVIDENCE_SCHEMA = 1
"""Version of the document of `evidence_document`."""


def measure_coverage(
    anchors: Sequence[Setting], trials: Sequence[Trial], *, converged: bool, remaining_gain: float | None
) -> Coverage:
    """Return the settings that a search tried, by pairs of algorithm and protocol.

    Args:
        anchors: one setting per pair, of `SearchSpace.anchors`.
        converged, remaining_gain: as for `Coverage`.
    """
    # A trial that never started on a machine shows nothing of its setting.
    launched = [t for t in trials if t.result.outcome is not Outcome.INVALID or not t.result.wall_s]
    tried = [t for t in launched if t.tries_setting and not t.setting.is_default]
    measured = {t.setting for t in tried if t.score_us is not None}
    pairs = list(dict.fromkeys(_pair(setting) for setting in anchors))
    done, started = {_pair(setting) for setting in measured}, {_pair(t.setting) for t in tried}
    return Coverage(
        settings=len(measured),
        measured=tuple(pair for pair in pairs if pair in done),
        failed=tuple(pair for pair in pairs if pair in started - done),
        untried=tuple(pair for pair in pairs if pair not in started),
        channels=tuple(sorted({setting.channels for setting in measured if setting.channels is not None})),
        converged=converged,
        remaining_gain=remaining_gain,
    )


def require_coverage(verdict: Verdict, coverage: Coverage | None) -> Verdict:
    """Turn keep-default into undecided where too few settings were tried; without coverage the verdict stays."""
    if coverage is None or coverage.is_enough or verdict.decision is not Decision.KEEP_DEFAULT:
        return verdict
    reason = f"{verdict.reason}; too few settings tried to rule out a gain"
    return replace(verdict, decision=Decision.UNDECIDED, reason=reason)


def _pair(setting: Setting) -> str:
    return f"{setting.algorithm or 'auto'}/{setting.protocol or 'auto'}"


def find_unchanged(blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], workload: Workload) -> frozenset[Message]:
    """Find the messages that a table leaves to NCCL, and that therefore count as the same on both sides of a pair.

    None where they are shown to be slower under the table none the less (at `FALSE_VETO`).

    Args:
        blocks: of `LaunchEvidence.whole_blocks`.
        workload: placed.
    """
    if not blocks or blocks[0][0].arm is not Arm.DEFAULT:
        return frozenset()
    calls = {c.message: c.calls_per_step for c in workload.messages if c.message in blocks[0][1].left}
    sums_us = [[sum(calls[m] * side.message_us[m] for m in calls) for side in pair] for pair in blocks]
    if not calls or min(map(min, sums_us)) <= 0:
        return frozenset()
    slower = float(log_capital(np.array([math.log(policy / default) for default, policy in sums_us])))
    return frozenset() if slower >= -math.log(FALSE_VETO) else frozenset(calls)


def average_unchanged(
    blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], workload: Workload
) -> tuple[tuple[ArmLaunch, ArmLaunch], ...]:
    """Average the unchanged messages over both sides of each pair; for arguments see `find_unchanged`.

    What is the same on both sides differs by noise alone, so both get its mean. That keeps what a bet needs: were the
    two launches alike, exchanging them would only change the sign of their log ratio.
    """
    unchanged = find_unchanged(blocks, workload)
    calls = [c for c in workload.messages if c.message in unchanged]
    more_us = [
        sum(c.calls_per_step * (launch.message_us[c.message] - default.message_us[c.message]) for c in calls) / 2
        for default, launch in blocks
    ]
    return tuple(
        (replace(a, time_us=_time_us(a) + shift_us), replace(b, time_us=_time_us(b) - shift_us))
        for (a, b), shift_us in zip(blocks, more_us, strict=True)
    )


def build_pairs(arm: Arm, policy: Policy, blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], workload: Workload) -> Pairs:
    """Build the evidence of a verdict: the times per step, and those of the messages of weight.

    Args:
        arm: which one. A table can leave a message to NCCL without changing the others, unless process-wide parameters
            go with it, or another message has the same size: NCCL's tuner sees bytes only.
        policy: what the arm forced; a message that it leaves to NCCL has no veto.
        blocks: of `LaunchEvidence.whole_blocks`. Where their baseline is not the default, the arm changes every
            message, and none can be left as it is there.
        workload: placed.
    """
    over_default = not blocks or blocks[0][0].arm is Arm.DEFAULT
    costs_us = {
        calls.message: calls.calls_per_step
        * statistics.median(default.message_us.get(calls.message, 0.0) for default, _ in blocks)
        for calls in workload.messages
        if blocks
    }
    weighty = [
        message
        for message, cost_us in costs_us.items()
        if cost_us >= WEIGHTY_SHARE * sum(costs_us.values())
        and not (over_default and policy.setting_for(message).is_default)
    ]
    sizes = {(m.collective, m.size_bytes, m.group_size, m.spans_nodes) for m in weighty}
    averaged = average_unchanged(blocks, workload)
    measured = [_time_us(a) / _time_us(b) for a, b in blocks] if find_unchanged(blocks, workload) else []
    return Pairs(
        default_us=tuple(_time_us(default) for default, _ in averaged),
        policy_us=tuple(_time_us(launch) for _, launch in averaged),
        losses={m: tuple(math.log(b.message_us[m] / a.message_us[m]) for a, b in blocks) for m in weighty},
        separable=over_default and arm is Arm.TABLE and not policy.parameters and len(sizes) == len(weighty),
        measured_gains=tuple(map(math.log, measured)),
    )


def judge_arm(
    arm: Arm,
    policy: Policy,
    trials: Sequence[Trial],
    workload: Workload,
    *,
    min_effect: float,
    baseline: Arm = Arm.DEFAULT,
) -> Verdict:
    """Judge one arm against the baseline by the last proof among the trials.

    Args:
        workload: placed.
        min_effect: smallest gain that justifies a change, as a share.
    """
    evidence = collect_evidence(trials)
    return judge(
        build_pairs(arm, policy, evidence.whole_blocks(arm, baseline=baseline), workload),
        min_effect=min_effect,
        # Where no launch of the baseline succeeded either, a failure says nothing about the policy.
        failure=evidence.failure(arm) if evidence.times_us(baseline) else "",
        baseline_failure=evidence.failure(baseline),
        baseline_name=BASELINE_NAMES[baseline],
    )


def build_policy_verdict(
    arm: Arm, policy: Policy, trials: Sequence[Trial], workload: Workload, *, min_effect: float
) -> PolicyVerdict:
    """Build the delivered policy of an arm with its verdict; for arguments see `judge_arm`."""
    verdict = judge_arm(arm, policy, trials, workload, min_effect=min_effect)
    over_today = None
    if any(trial.arm is Arm.TODAY for trial in last_proof(trials)):
        over_today = judge_arm(arm, policy, trials, workload, min_effect=min_effect, baseline=Arm.TODAY)
    slower = _compare_arm_probes(arm, policy, trials, workload)
    if verdict.decision is Decision.TUNED:
        pairs = build_pairs(arm, policy, collect_evidence(trials).whole_blocks(arm), workload)
        slower |= dict.fromkeys(find_dropped_messages(pairs), True)
    return PolicyVerdict(policy=narrow_rules(policy, workload, slower), verdict=verdict, over_today=over_today)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBits:
    """Messages of the last proof by what their bits showed, in launches of an arm and of the NCCL default.

    Attributes:
        equal: same bits in all launches.
        different: the arm had other bits than the default.
        varying: the default itself had several, so nothing can be compared.
    """

    equal: tuple[Message, ...] = ()
    different: tuple[Message, ...] = ()
    varying: tuple[Message, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        parts = [f"{count_noun(len(self.equal), 'size')} equal"] if self.equal else []
        if self.different:
            parts.append(f"{len(self.different)} different ({_name_some(self.different)})")
        if self.varying:
            parts.append(f"{len(self.varying)} not reproducible under the default ({_name_some(self.varying)})")
        words = ", ".join(parts)
        return f"bits compared in the A/B test: {words}" if words else "bits not compared (torch_collectives does)"


def compare_seen_bits(trials: Sequence[Trial], arm: Arm) -> SeenBits:
    """Compare the bits that an arm of the last proof and the NCCL default received, message by message."""
    bits: dict[Message, dict[Arm, set[str]]] = {}
    for trial in last_proof(trials):
        if trial.arm in (arm, Arm.DEFAULT) and trial.result.outcome is Outcome.OK:
            for measurement in filter(lambda measured: measured.bits, trial.result.measurements):
                bits.setdefault(measurement.message, {}).setdefault(trial.arm, set()).add(measurement.bits)
    sides_by_message = {message: (sides[Arm.DEFAULT], sides[arm]) for message, sides in bits.items() if len(sides) > 1}
    return SeenBits(
        equal=tuple(
            message for message, (default, tuned) in sides_by_message.items() if len(default) == 1 and tuned == default
        ),
        different=tuple(
            message for message, (default, tuned) in sides_by_message.items() if len(default) == 1 and tuned != default
        ),
        varying=tuple(message for message, (default, _) in sides_by_message.items() if len(default) > 1),
    )


def refuse_other_bits(
    arm: Arm, policy: Policy, trials: Sequence[Trial], *, version: NcclVersion, min_effect: float
) -> Verdict | None:
    """Return the verdict on an arm that had other bits than the default, against its numerics; None = no objection.

    Args:
        arm, policy, trials, min_effect: as for `judge_arm`.
    """
    compared = compare_seen_bits(trials, arm)
    bits = compare_bits(policy, version=version, by_variables=arm is Arm.VARIABLES)
    if not compared.different or bits.same_bits is not SameBits.YES:
        return None
    return keep_default(median_scores(trials)[DEFAULT], why=f"refused: {compared.sentence}", min_effect=min_effect)


def describe_proof(trials: Sequence[Trial], workload: Workload, table: PolicyVerdict) -> tuple[str, ...]:
    """Describe the last proof: how it was made, and what it took from the policies.

    Args:
        workload: placed.
    """
    launched = last_proof(trials)
    notes = [_BY_SUMS] if any(t.arm is Arm.TABLE and t.policy is None for t in launched) else []
    policies = {t.arm: t.policy for t in launched if t.arm is not None and t.policy is not None}
    if table.verdict.decision is Decision.TUNED and (dropped := _find_dropped(launched, workload, table.policy)):
        notes.append(
            f"left at the NCCL default: {', '.join(dropped)} (slower in the A/B test; the gain includes that loss)"
        )
    if not table.verdict.blocks:  # the last proof was of a policy that is not delivered
        return tuple(notes)
    own = {calls.message for calls in workload.messages}
    measured = {m.message for t in launched if t.arm in policies for m in t.result.measurements} - own
    if gated := sorted({m.group_size for m in measured if not m.collective.is_tunable}):
        groups = " and ".join(map(str, gated))
        notes.append(f"hang gate passed: send_recv and all_to_all of other sizes in groups of {groups} ranks")
    slower = {
        m: lost
        for arm, policy in policies.items()
        for m, lost in _compare_arm_probes(arm, policy, trials, workload).items()
    }
    if lost := [m for m, is_slower in slower.items() if is_slower]:
        notes.append(f"rules exclude {_join_sizes(lost)}: slower than the default when probed")
    return tuple(notes)


def _name_some(messages: Sequence[Message], shown: int = 3) -> str:
    unnamed = len(messages) - shown
    return _join_sizes(messages[:shown]) + (f" and {unnamed} more" if unnamed > 0 else "")


def _join_sizes(messages: Sequence[Message]) -> str:
    """Return the sizes of messages as text: `all_reduce of 19.78, 25.17 and 45.31 MiB`."""
    texts = []
    for collective in dict.fromkeys(m.collective for m in messages):
        sizes = [format_bytes(m.size_bytes) for m in messages if m.collective is collective]
        units = {size.split()[1] for size in sizes}
        if len(units) == 1:
            sizes = [*(size.split()[0] for size in sizes[:-1]), sizes[-1]]
        texts.append(f"{collective} of {' and '.join(filter(None, (', '.join(sizes[:-1]), sizes[-1])))}")
    return "; ".join(texts)


def _find_dropped(launched: Sequence[Trial], workload: Workload, table: Policy) -> list[str]:
    """Return the labels of the messages that were launched under another setting than is delivered."""
    settings = {
        measured.message: trial.setting_for(measured.message)
        for trial in launched
        if trial.arm is Arm.TABLE
        for measured in trial.result.measurements
    }
    sent = (calls.message for calls in workload.messages)
    return [m.label for m in sent if settings.get(m, table.setting_for(m)) != table.setting_for(m)]


def _compare_arm_probes(arm: Arm, policy: Policy, trials: Sequence[Trial], workload: Workload) -> dict[Message, bool]:
    times_us = collect_evidence(trials).message_times_us
    return compare_probes(policy, workload, times_us(Arm.DEFAULT), times_us(arm))


def describe_blocks(
    arm: Arm, policy: Policy, trials: Sequence[Trial], workload: Workload, *, min_effect: float
) -> list[dict[str, Any]]:
    """Return the document of every whole block of an arm; for arguments see `judge_arm`.

    A block has two pairs of launches in the order of the arm's, with averaged times (`average_unchanged`). Speed-up,
    interval and decision are those of this and all earlier blocks.
    """
    blocks = collect_evidence(trials).whole_blocks(arm)
    rows = []
    for end in range(LAUNCHES_PER_BLOCK, len(blocks) + 1, LAUNCHES_PER_BLOCK):
        newest = average_unchanged(blocks[:end], workload)[-LAUNCHES_PER_BLOCK:]
        pairs = build_pairs(arm, policy, blocks[:end], workload)
        verdict = judge(pairs, min_effect=min_effect, ended=end == len(blocks)).to_document()
        rows.append(
            {
                "block": newest[0][1].block // LAUNCHES_PER_BLOCK,
                "trials": [[default.order, launch.order] for default, launch in newest],
                "default_us": [default.time_us for default, _ in newest],
                "policy_us": [launch.time_us for _, launch in newest],
                "log_ratios": [float(gain) for gain in pairs.gains[-LAUNCHES_PER_BLOCK:]],
                "speedup": verdict["speedup"],
                "interval": verdict["interval"],
                "decision": verdict["decision"],
            }
        )
    return rows


def _time_us(launch: ArmLaunch) -> float:
    assert launch.time_us is not None, "whole blocks have no failed launch"
    return launch.time_us


def _compare_with_today(
    arm: Arm, policy: Policy, published: Verdict | None, trials: Sequence[Trial], workload: Workload
) -> dict[str, Any]:
    """Return the verdict of an arm over today's settings as published, and recomputed; empty without such an arm."""
    if published is None:
        return {}
    again = judge_arm(arm, policy, trials, workload, min_effect=published.min_effect, baseline=Arm.TODAY)
    return {
        "over_today": {
            "verdict": published.to_document(),
            "recomputed": again.to_document(),
            "same": again == published,
        }
    }


def evidence_document(recommendation: Recommendation, trials: Sequence[Trial], workload: Workload) -> dict[str, Any]:
    """Return the blocks of every arm, and its verdict recomputed from the trials.

    Args:
        workload: of its study, placed.
    """
    arms = []
    for arm, published in ((Arm.TABLE, recommendation.table), (Arm.VARIABLES, recommendation.variables)):
        if published is None:
            continue
        verdict, policy, min_effect = published.verdict, published.policy, published.verdict.min_effect
        judged = refuse_other_bits(
            arm, policy, trials, version=recommendation.fingerprint.version, min_effect=min_effect
        ) or judge_arm(arm, policy, trials, workload, min_effect=min_effect)
        again = require_coverage(judged, recommendation.coverage)
        # If the search found nothing to prove, there are no launches, and nothing to judge.
        measured = any(trial.arm is arm for trial in trials)
        arms.append(
            {
                "arm": arm.value,
                "verdict": verdict.to_document(),
                "recomputed": again.to_document() if measured else None,
                "same": again == verdict if measured else None,
                "blocks": describe_blocks(arm, policy, trials, workload, min_effect=min_effect),
                **_compare_with_today(arm, policy, published.over_today, trials, workload),
            }
        )
    return {
        "schema": EVIDENCE_SCHEMA,
        "recommendation": recommendation.id,
        "study": recommendation.study,
        "origin": str(recommendation.origin),
        "stale": recommendation.stale,
        "arms": arms,
        "today": {
            "variables": dict(recommendation.today.variables),
            **_compare_with_today(Arm.DEFAULT, Policy(), recommendation.today.default, trials, workload),
        }
        if recommendation.today
        else None,
    }
