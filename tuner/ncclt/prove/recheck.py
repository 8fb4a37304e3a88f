"""The recheck: a few launches of default and policy show whether a recommendation is still valid."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ncclt.core.budget import MOST_LAUNCHES
from ncclt.core.cluster import Fingerprint
from ncclt.core.message import Message
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.recheck import Change, Freshness, Recheck
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation
from ncclt.core.study import Arm, Study, Trial
from ncclt.core.trial import Outcome, Runner, TrialResult, times_origin
from ncclt.core.workload import Workload
from ncclt.errors import NoRecommendationError, StudyStoppedError, UsageError
from ncclt.measure.trial import measure_once
from ncclt.prove.evidence import ArmLaunch, LaunchEvidence, collect_evidence
from ncclt.prove.interleave import can_apply, plan_block

DEVIATIONS = 4.0
"""Standard errors that a change must exceed.

A dozen quantities are compared, each with few launches, so their scatter is estimated badly: at 4, about one healthy
recheck in a hundred is wrong with the eight launches of a proof against four new ones.
"""

_LEAST_NOISE = 0.005
"""Scatter below which a few launches may agree by chance, as a share."""

_NORMAL_MAD = 1.4826

_MEDIAN_COST = 1.2533
"""Standard deviation over median absolute deviation, and standard error of a median over that of a mean, of a normal
distribution (any textbook of robust statistics)."""

POINTS = 5
"""Messages that are measured again: those with most time per step."""

BLOCKS = 2
"""Four launches of each arm."""

TOLERANCE = 0.10
"""Share by which a time may change between two days without a cause that a new tuning would find."""

_GAIN = "gain of the policy over the default"
TODAY_GAIN = "gain of the policy over what you run today"
"""Concerns jobs with the tuning variables of today alone, so it never makes a recommendation stale."""
_TOO_WEAK = "too weak to clear the earlier recheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckRequest:
    """Recheck request.

    Attributes:
        recommendation: as published.
        study, trials: that it came from, with all launches.
        points: messages at most, 3 to 6.
        blocks: of two launches of each arm.
        tolerance: share by which a time may always change.
        driver: NVIDIA's on the nodes here, separated by commas where they differ; empty = not known.
        driver_before: under which it was measured, or last found fresh; empty = not known.
        driver_may_differ: measure under another driver, instead of treating that as a reason by itself.
        earlier: rechecks of this recommendation, newest first.
    """

    recommendation: Recommendation
    study: Study
    trials: tuple[Trial, ...]
    points: int = POINTS
    blocks: int = BLOCKS
    tolerance: float = TOLERANCE
    driver: str = ""
    driver_before: str = ""
    driver_may_differ: bool = False
    earlier: tuple[Recheck, ...] = ()

    def __post_init__(self) -> None:
        if not 3 <= self.points <= 6:
            raise UsageError(f"--points must be 3 to 6, not {self.points}")
        if not 1 <= self.blocks <= MOST_LAUNCHES:
            raise UsageError(f"--blocks must be 1 to {MOST_LAUNCHES:,}, not {self.blocks}")
        if not 0 < self.tolerance < 1:
            raise UsageError(f"--tolerance must be between 0 and 1, not {self.tolerance:g}")


def recheck(
    request: RecheckRequest,
    runner: Runner,
    *,
    interrupted: Callable[[], str],
    watch: Callable[[Arm, TrialResult], None],
    now: Callable[[], str],
    by_today: Runner | None = None,
) -> Recheck | None:
    """Recheck one recommendation; None when the user interrupted.

    It is stale if NCCL, driver, topology or kind of node differ from those it was measured on, if a launch of the
    policy fails, or if a time of default or policy, or the gain of one over the other, has changed beyond noise and
    tolerance. It stays stale if this recheck is too weak to see a change that an earlier one found.

    Args:
        runner: where it runs, forcing settings as they are delivered.
        interrupted: called before every launch; returns why to stop, empty = continue.
        watch: called after every launch.
        now: ISO time.
        by_today: measures what the study measured as its arm of today; None = the study had none, or other variables.

    Raises:
        NoRecommendationError: it delivers nothing, so there is nothing to recheck.
        UsageError: it was measured in a simulation and the recheck would run on a machine, or vice versa.
        StudyStoppedError: the default itself fails.
    """
    found = request.recommendation
    if times_origin(runner.name, simulated=runner.simulated) is not found.origin:
        raise UsageError(
            f"the recommendation {found.id} was measured by the launcher {found.launcher!r}, not by {runner.name!r}: "
            "measured, recorded and simulated times cannot be compared",
            hint=f"use --launcher {found.launcher}",
        )
    then, here = found.fingerprint.site_variables, runner.cluster.site_variables
    if then != here:
        shown = [" ".join(f"{name}={value}" for name, value in one) or "none" for one in (then, here)]
        raise UsageError(
            f"the variables of the site are other ones here: {shown[1]}; {found.id} was measured with {shown[0]}",
            hint="export those of the measurement, or tune again under these; nothing was recorded",
        )
    evidence = collect_evidence(request.trials)
    arm, policy_verdict = find_served_arm(found, evidence)
    if reasons := _find_changed_conditions(request, runner.cluster.fingerprint()):
        return _build_recheck(request, reasons, (), launches=0, launcher="", now=now())
    before = _restore_dropped(evidence.whole_blocks(arm), policy_verdict.policy)
    if not before:
        raise NoRecommendationError(
            f"the launches behind {found.id} are outdated: its study has searched on since",
            hint="run the same `ncclt tune` to validate and publish it again",
        )
    workload = _reduce_workload(request.study.workload, before, request.points)
    measured: dict[Arm, list[Mapping[Message, float]]] = {Arm.DEFAULT: [], arm: []}
    launches = 0
    policies = {Arm.DEFAULT: Policy(), arm: policy_verdict.policy}
    runners = dict.fromkeys(policies, runner)
    today_before = {
        launch.block: launch for launch in evidence.launches if launch.arm is Arm.TODAY and launch.message_us
    }
    if by_today and today_before:
        policies[Arm.TODAY], runners[Arm.TODAY], measured[Arm.TODAY] = Policy(), by_today, []
    for launch in _launch_all(request, runners, workload, policies, interrupted=interrupted, watch=watch):
        if launch is None:
            return None
        one, message_us, failure = launch
        if one is Arm.TODAY:
            measured[one] += [] if failure else [message_us]
            continue
        launches += 1
        measured[one].append(message_us)
        if failure and one is Arm.DEFAULT:
            raise StudyStoppedError(
                f"the NCCL default does not run here: {failure}",
                hint="repair the cluster or the benchmark first; nothing was recorded",
            )
        if failure:
            return _build_recheck(
                request, [f"the policy fails: {failure}"], (), launches=launches, launcher=runner.name, now=now()
            )
    min_effect = policy_verdict.verdict.min_effect
    changes = _compare_all(request, workload, arm, before, today_before, measured, min_effect=min_effect)
    reasons = [
        f"{c.what}: {c.before:.3g} -> {c.now:.3g} ({(c.ratio - 1) * 100:+.1f} %, noise explains {c.noise * 100:.1f} %)"
        for c in changes
        if c.changed and c.what != TODAY_GAIN
    ]
    reasons = reasons or _find_open_reasons(
        request, changes, runner.cluster.fingerprint(), launches=launches, min_effect=min_effect
    )
    return _build_recheck(request, reasons, changes, launches=launches, launcher=runner.name, now=now())


def find_served_arm(found: Recommendation, evidence: LaunchEvidence) -> tuple[Arm, PolicyVerdict]:
    """Find the served arm, the per-size policy before the variables; NoRecommendationError if there is none.

    Where variables alone were launched, they are published as the per-size policy too.
    """
    forms = {Arm.TABLE: found.table, Arm.VARIABLES: found.variables}
    tuned = {arm: form for arm, form in forms.items() if form and form.verdict.decision is Decision.TUNED}
    if tuned:
        arm = max(tuned, key=lambda arm: bool(evidence.whole_blocks(arm)))
        return arm, tuned[arm]
    raise NoRecommendationError(
        f"there is nothing to recheck: the recommendation {found.id} says {found.table.verdict.decision}",
        hint="jobs keep their own settings, which cannot become stale",
    )


def _find_changed_conditions(request: RecheckRequest, here: Fingerprint) -> list[str]:
    """List the differences between this cluster, with its driver, and that of the measurement."""
    changes = [
        f"{what} is {now} here and was {before}"
        for what, before, now in _list_facts(request.recommendation.fingerprint, here)
        if before and now and before != now
    ]
    before, now = request.driver_before, request.driver
    if before and now and before != now and not request.driver_may_differ:
        changes.append(f"the NVIDIA driver is {now} here and was {before} (--new-driver measures under it)")
    return changes


def _list_facts(then: Fingerprint, here: Fingerprint) -> list[tuple[str, str, str]]:
    """List the facts that must match: name, value at the measurement, value here; empty = not known."""
    names = {
        "gpu": "gpu",
        "link_class": "link class",
        "fabric": "fabric",
        "nccl_version": "NCCL",
        "topology_hash": "topology hash",
    }
    return [(what, getattr(then, name), getattr(here, name)) for name, what in names.items()]


def driver_before(recommendation: Recommendation, rechecks: Sequence[Recheck]) -> str:
    """Return the driver under which a recommendation was last found fresh; empty = not known.

    Args:
        rechecks: of it, newest first.
    """
    found = (recheck.driver for recheck in rechecks if recheck.freshness is Freshness.FRESH and recheck.driver)
    return next(found, recommendation.fingerprint.driver)


def _restore_dropped(
    blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], policy: Policy
) -> list[tuple[ArmLaunch, ArmLaunch]]:
    """Return the pairs of a proof with NCCL's own times for messages whose rule was not delivered, as it lost."""
    pairs = []
    for default, launch in blocks:
        forced = launch.message_us.keys() - launch.left if launch.arm is Arm.TABLE else ()
        own_us = {m: default.message_us[m] for m in forced if policy.setting_for(m).is_default}
        pairs.append((default, replace(launch, message_us={**launch.message_us, **own_us})))
    return pairs


def _reduce_workload(workload: Workload, before: Sequence[tuple[ArmLaunch, ArmLaunch]], count: int) -> Workload:
    """Return the workload reduced to the messages with most time per step."""

    def cost_us(position: int) -> float:
        calls = workload.messages[position]
        return calls.calls_per_step * statistics.median(a.message_us[calls.message] for a, _ in before)

    ranked = sorted(range(len(workload.messages)), key=cost_us, reverse=True)
    return replace(workload, messages=tuple(workload.messages[position] for position in ranked[:count]))


def _launch_all(
    request: RecheckRequest,
    runners: Mapping[Arm, Runner],
    workload: Workload,
    policies: Mapping[Arm, Policy],
    *,
    interrupted: Callable[[], str],
    watch: Callable[[Arm, TrialResult], None],
) -> Iterator[tuple[Arm, Mapping[Message, float], str] | None]:
    """Measure the points interleaved under each arm; where no launch applies the policy, one launch per setting.

    Yields:
        the arm, the time of each message, µs, and why a launch failed; None if the user interrupted.
    """
    counts = Counter(trial.setting for trial in request.trials)
    whole = all(can_apply(runners[arm], policy) for arm, policy in policies.items())
    for block in range(request.blocks):
        steps = plan_block(policies, workload, block, whole=whole, seed=request.recommendation.id)
        for half in dict.fromkeys((step.arm, step.block) for step in steps):
            message_us: dict[Message, float] = {}
            failure = ""
            for step in (s for s in steps if (s.arm, s.block) == half):
                if interrupted():
                    yield None
                    return
                result = measure_once(
                    runners[step.arm], step.setting, step.policy, step.messages, repeat=counts[step.setting]
                )
                counts[step.setting] += 1
                watch(step.arm, result)
                if result.outcome is not Outcome.OK:
                    failure = f"{result.outcome}: {result.detail}"
                    break
                message_us |= {m.message: m.time_us for m in result.measurements}
            yield half[0], message_us, failure


def _compare_all(
    request: RecheckRequest,
    workload: Workload,
    arm: Arm,
    before: Sequence[tuple[ArmLaunch, ArmLaunch]],
    today_before: Mapping[int, ArmLaunch],
    measured: Mapping[Arm, Sequence[Mapping[Message, float]]],
    *,
    min_effect: float,
) -> tuple[Change, ...]:
    def step_us(message_us: Mapping[Message, float]) -> float:
        return sum(calls.calls_per_step * message_us[calls.message] for calls in workload.messages)

    changes = [
        compare(
            _GAIN,
            [step_us(a.message_us) / step_us(b.message_us) for a, b in before],
            [step_us(a) / step_us(b) for a, b in zip(measured[Arm.DEFAULT], measured[arm], strict=True)],
            tolerance=min_effect,
        )
    ]
    today = measured.get(Arm.TODAY, ())
    pairs = [(today_before[policy.block], policy) for _, policy in before if policy.block in today_before]
    if pairs and len(today) == len(measured[arm]):
        changes.append(
            compare(
                TODAY_GAIN,
                [step_us(a.message_us) / step_us(b.message_us) for a, b in pairs],
                [step_us(a) / step_us(b) for a, b in zip(today, measured[arm], strict=True)],
                tolerance=min_effect,
            )
        )
    for calls in workload.messages:
        message = calls.message
        for position, one in enumerate((Arm.DEFAULT, arm)):
            changes.append(
                compare(
                    f"{message.label} under the {'default' if one is Arm.DEFAULT else 'policy'}, us",
                    [pair[position].message_us[message] for pair in before],
                    [message_us[message] for message_us in measured[one]],
                    tolerance=request.tolerance,
                )
            )
    return tuple(changes)


def _find_open_reasons(
    request: RecheckRequest, changes: Sequence[Change], place: Fingerprint, *, launches: int, min_effect: float
) -> list[str]:
    """List why a recheck without findings does not clear earlier stale ones; empty = it clears them."""
    standing = list(takewhile(lambda one: one.freshness is Freshness.STALE, request.earlier))
    if not standing:
        return []
    facts = _list_facts(request.recommendation.fingerprint, place)
    unknown = [what for what, before, now in facts if before and not now]
    if request.driver_before and not request.driver and not request.driver_may_differ:
        unknown.append("NVIDIA driver")
    now = {change.what: change for change in changes}
    doubts: dict[str, None] = {}
    messages = len(request.study.workload.messages)
    if request.blocks < BLOCKS or request.tolerance > TOLERANCE or request.points < min(POINTS, messages):
        doubts[f"give at least --points {POINTS} and --blocks {BLOCKS}, and at most --tolerance {TOLERANCE:g}"] = None
    for one in standing:
        if not one.launches and unknown:
            doubts[f"{', '.join(unknown)} not known here"] = None
        if not one.changes and launches < one.launches:
            doubts[f"{count_noun(launches, 'launch', 'launches')}, the earlier recheck had {one.launches}"] = None
        for change in (change for change in one.changes if change.changed and change.what != TODAY_GAIN):
            here, before = now.get(change.what), f"{change.what}, which changed by {(change.ratio - 1) * 100:+.1f} %"
            if here is None:
                doubts[f"{before}, was not measured again"] = None
                continue
            hidden = max(here.noise, min_effect if change.what == _GAIN else request.tolerance)
            if math.log1p(hidden) >= abs(math.log(change.ratio)):
                doubts[f"{before}, could change by {hidden * 100:.1f} % unnoticed"] = None
    if not doubts:
        return []
    found = [reason for reason in standing[0].reasons if not reason.startswith(_TOO_WEAK)]
    return [f"{_TOO_WEAK}: {'; '.join(doubts)}", *found]


def _build_recheck(
    request: RecheckRequest,
    reasons: Sequence[str],
    changes: tuple[Change, ...],
    *,
    launches: int,
    launcher: str,
    now: str,
) -> Recheck:
    found = request.recommendation
    return Recheck(
        id=hashlib.sha256(f"{found.id}{now}{reasons}{changes}".encode()).hexdigest()[:12],
        recommendation=found.id,
        cluster=found.cluster,
        model=found.model,
        freshness=Freshness.STALE if reasons else Freshness.FRESH,
        reasons=tuple(reasons),
        changes=changes,
        launches=launches,
        launcher=launcher,
        created=now,
        driver=request.driver,
    )


def compare(what: str, before: Sequence[float], now: Sequence[float], *, tolerance: float) -> Change:
    """Compare the medians of two sets of positive values.

    Args:
        before, now: two or more values each.
        tolerance: share by which the median may always change.
    """
    logs = [[math.log(value) for value in values] for values in (before, now)]
    medians = [statistics.median(values) for values in logs]
    deviations = [
        statistics.median(abs(value - middle) for value in values) for values, middle in zip(logs, medians, strict=True)
    ]
    scatter = max(_LEAST_NOISE, *(_NORMAL_MAD * deviation for deviation in deviations))
    error = scatter * _MEDIAN_COST * math.sqrt(1 / len(before) + 1 / len(now))
    shift = abs(medians[1] - medians[0])
    return Change(
        what=what,
        before=math.exp(medians[0]),
        now=math.exp(medians[1]),
        noise=math.expm1(DEVIATIONS * error),
        changed=shift > max(DEVIATIONS * error, math.log1p(tolerance)),
    )
