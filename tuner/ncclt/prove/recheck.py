"""The recheck: a few launches of default and policy show whether a recommendation is still valid."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
"""Min standard errors of a change of one message: each recheck compares a dozen, with few launches each."""

GAIN_DEVIATIONS = 2.8
"""Min standard errors of a loss of the whole gain. In simulations it finds 98 % of the losses of a 6 % gain under 2 %
noise; at most 2 % of healthy results become stale: quiet, 5 % noise, bimodal, a slow rank, 10 % between days."""

_WORN = 1 / 3
"""Min share of a gain that must be lost: the rest is worth its delivery, and days differ by more than launches."""

_LEAST_NOISE = 0.005
"""Min assumed noise, as a share: a few launches may agree by chance."""

POINTS = 5
"""Messages that are measured again: those with most time per step."""

BLOCKS = 2
"""Four launches of each arm."""

TOLERANCE = 0.10
"""Max normal change of a time between two days, as a share."""

_GAIN = "gain of the policy over the default"
TODAY_GAIN = "gain of the policy over what you run today"
"""Matters only for jobs with today's tuning variables, so it never makes a recommendation stale."""
_TOO_WEAK = "too weak to clear the earlier recheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckRequest:
    """Recheck request.

    Attributes:
        recommendation: published recommendation.
        study, trials: its study, with all launches.
        points: max messages, 3 to 6.
        blocks: number of blocks, each with two launches per arm.
        tolerance: max normal change of a time, as a share.
        driver: NVIDIA drivers on these nodes, comma-separated; empty = unknown.
        driver_before: driver at tuning or at the last fresh recheck; empty = unknown.
        driver_may_differ: measure under another driver, instead of calling the result stale for it.
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

    It is stale if NCCL, driver, topology or kind of node changed, if a launch of the policy fails, or if its gain, or
    that of a message, shrank beyond noise and tolerance. Gains come from pairs of launches: a slow day is only a note.
    A stale result remains stale if this recheck is too weak to see the change that an earlier one found.

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
    recommendation, place = request.recommendation, runner.cluster.fingerprint()
    _require_same_kind(recommendation, runner)
    evidence = collect_evidence(request.trials)
    arm, served = find_served_arm(recommendation, evidence)
    if reasons := _find_changed_conditions(request, place):
        return _build_recheck(request, reasons, (), launches=0, launcher="", now=now())
    before = _restore_dropped(evidence.whole_blocks(arm), served.policy)
    if not before:
        raise NoRecommendationError(
            f"the launches behind {recommendation.id} are outdated: its study has searched on since",
            hint="run the same `ncclt tune` to validate and publish it again",
        )
    comparison = _RecheckComparison(
        request=request,
        arm=arm,
        workload=_reduce_workload(request.study.workload, before, request.points),
        before=before,
        today_before={run.block: run for run in evidence.launches if run.arm is Arm.TODAY and run.message_us},
        min_effect=served.verdict.min_effect,
    )
    policies, runners = {Arm.DEFAULT: Policy(), arm: served.policy}, {Arm.DEFAULT: runner, arm: runner}
    if by_today and comparison.today_before:
        policies[Arm.TODAY], runners[Arm.TODAY] = Policy(), by_today
    failure = ""
    for launch in _launch_all(request, runners, comparison.workload, policies, interrupted=interrupted, watch=watch):
        if launch is None:
            return None
        if failure := comparison.add(*launch):
            break
    launches = comparison.launches + bool(failure)
    changes = () if failure else comparison.compare()
    reasons = [failure] if failure else comparison.list_reasons(changes, place)
    return _build_recheck(request, reasons, changes, launches=launches, launcher=runner.name, now=now())


def _require_same_kind(recommendation: Recommendation, runner: Runner) -> None:
    """Refuse a runner whose times cannot be compared with those of the study.

    Raises:
        UsageError: they have another origin, or were measured under other variables of the site.
    """
    if times_origin(runner.name, simulated=runner.simulated) is not recommendation.origin:
        launcher = recommendation.launcher
        raise UsageError(
            f"the recommendation {recommendation.id} was measured by the launcher {launcher!r}, not by "
            f"{runner.name!r}: measured, recorded and simulated times cannot be compared",
            hint=f"use --launcher {launcher}",
        )
    before, now = recommendation.fingerprint.site_variables, runner.cluster.site_variables
    if before != now:
        shown = [" ".join(f"{name}={value}" for name, value in variables) or "none" for variables in (before, now)]
        raise UsageError(
            f"the variables of the site are other ones here: {shown[1]}; {recommendation.id} was measured with "
            f"{shown[0]}",
            hint="export those of the measurement, or tune again under these; nothing was recorded",
        )


def find_served_arm(recommendation: Recommendation, evidence: LaunchEvidence) -> tuple[Arm, PolicyVerdict]:
    """Find the served arm, the per-size policy before the variables; NoRecommendationError if there is none.

    Where variables alone were launched, they are published as the per-size policy too.
    """
    forms = {Arm.TABLE: recommendation.table, Arm.VARIABLES: recommendation.variables}
    tuned = {arm: form for arm, form in forms.items() if form and form.verdict.decision is Decision.TUNED}
    if tuned:
        arm = max(tuned, key=lambda arm: bool(evidence.whole_blocks(arm)))
        return arm, tuned[arm]
    raise NoRecommendationError(
        f"there is nothing to recheck: the recommendation {recommendation.id} says "
        f"{recommendation.table.verdict.decision}",
        hint="jobs keep their own settings, which cannot become stale",
    )


def _find_changed_conditions(request: RecheckRequest, place: Fingerprint) -> list[str]:
    """List the differences between this cluster, with its driver, and that of the measurement."""
    changes = [
        f"{name} is {now} here and was {before}"
        for name, before, now in _list_facts(request.recommendation.fingerprint, place)
        if before and now and before != now
    ]
    before, now = request.driver_before, request.driver
    if before and now and before != now and not request.driver_may_differ:
        changes.append(f"the NVIDIA driver is {now} here and was {before} (--new-driver measures under it)")
    return changes


def _list_facts(before: Fingerprint, now: Fingerprint) -> list[tuple[str, str, str]]:
    """List the facts that must match: name, value at the measurement, value here; empty = not known."""
    names = {"gpu": "gpu", "link_class": "link class", "fabric": "fabric", "nccl_version": "NCCL"}
    names["topology_hash"] = "topology hash"
    return [(words, getattr(before, name), getattr(now, name)) for name, words in names.items()]


def driver_before(recommendation: Recommendation, rechecks: Sequence[Recheck]) -> str:
    """Return the driver under which a recommendation was last found fresh; empty = not known.

    Args:
        rechecks: of it, newest first.
    """
    drivers = (recheck.driver for recheck in rechecks if recheck.freshness is Freshness.FRESH and recheck.driver)
    return next(drivers, recommendation.fingerprint.driver)


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
    is_whole = all(can_apply(runners[arm], policy) for arm, policy in policies.items())
    for block in range(request.blocks):
        steps = plan_block(policies, workload, block, whole=is_whole, seed=request.recommendation.id)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecheckComparison:
    """Launches of a recheck, and those of the proof that they are compared with.

    Attributes:
        arm: which is served.
        workload: the messages that are measured again.
        before: pairs of the proof: default and arm.
        today_before: launches of today's arm in the proof, by block.
        min_effect: of the verdict.
        measured: time of each message in each launch by arm, µs.
    """

    request: RecheckRequest
    arm: Arm
    workload: Workload
    before: Sequence[tuple[ArmLaunch, ArmLaunch]]
    today_before: Mapping[int, ArmLaunch]
    min_effect: float
    measured: defaultdict[Arm, list[Mapping[Message, float]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def launches(self) -> int:
        """Return the number of launches of default and arm."""
        return len(self.measured[Arm.DEFAULT]) + len(self.measured[self.arm])

    def add(self, arm: Arm, message_us: Mapping[Message, float], failure: str) -> str:
        """Add a launch, and return the reason for which it makes the recommendation stale; empty = none.

        Raises:
            StudyStoppedError: the default fails.
        """
        if not failure:
            self.measured[arm].append(message_us)
        if failure and arm is Arm.DEFAULT:
            raise StudyStoppedError(
                f"the NCCL default does not run here: {failure}",
                hint="repair the cluster or the benchmark first; nothing was recorded",
            )
        return f"the policy fails: {failure}" if failure and arm is self.arm else ""

    def _compare_gain(
        self,
        name: str,
        before: Iterable[tuple[ArmLaunch, ArmLaunch]],
        baseline: Sequence[Mapping[Message, float]],
    ) -> Change:
        def step_us(message_us: Mapping[Message, float]) -> float:
            return sum(calls.calls_per_step * message_us[calls.message] for calls in self.workload.messages)

        gains = [step_us(a.message_us) / step_us(b.message_us) for a, b in before]
        return compare(
            name,
            gains,
            [step_us(a) / step_us(b) for a, b in zip(baseline, self.measured[self.arm], strict=True)],
            tolerance=max(self.min_effect, math.expm1(_WORN * abs(math.log(statistics.geometric_mean(gains))))),
            deviations=GAIN_DEVIATIONS,
        )

    def compare(self) -> tuple[Change, ...]:
        """Return the changes of the gains and of the time of each message."""
        measured = self.measured
        changes = [self._compare_gain(_GAIN, self.before, measured[Arm.DEFAULT])]
        pairs = [
            (self.today_before[policy.block], policy) for _, policy in self.before if policy.block in self.today_before
        ]
        if pairs and len(measured[Arm.TODAY]) == len(measured[self.arm]):
            changes.append(self._compare_gain(TODAY_GAIN, pairs, measured[Arm.TODAY]))
        now = list(zip(measured[Arm.DEFAULT], measured[self.arm], strict=True))
        for message in (calls.message for calls in self.workload.messages):
            default_us = [default.message_us[message] for default, _ in self.before]
            gains = [default.message_us[message] / policy.message_us[message] for default, policy in self.before]
            gains_now = [default[message] / policy[message] for default, policy in now]
            changes += [
                compare(f"{message.label}: gain", gains, gains_now, tolerance=self.request.tolerance),
                compare(
                    f"{message.label} under the default, us",
                    default_us,
                    [default[message] for default, _ in now],
                    tolerance=self.request.tolerance,
                ),
            ]
        return tuple(changes)

    def list_reasons(self, changes: Sequence[Change], place: Fingerprint) -> list[str]:
        """List the changes for which it is stale, or else why earlier ones still count."""
        reasons = [
            f"{c.what}: {c.before:.3g} -> {c.now:.3g} ({(c.ratio - 1) * 100:+.1f} %, noise explains "
            f"{c.noise * 100:.1f} %)"
            for c in changes
            if _makes_stale(c)
        ]
        return reasons or self._find_open_reasons(changes, place)

    def _find_open_reasons(self, changes: Sequence[Change], place: Fingerprint) -> list[str]:
        """List why a recheck without findings does not clear earlier stale ones; empty = it clears them."""
        request = self.request
        standing = list(takewhile(lambda earlier: earlier.freshness is Freshness.STALE, request.earlier))
        if not standing:
            return []
        facts = _list_facts(request.recommendation.fingerprint, place)
        unknown = [name for name, before, now in facts if before and not now]
        if request.driver_before and not request.driver and not request.driver_may_differ:
            unknown.append("NVIDIA driver")
        now = {change.what: change for change in changes}
        doubts: list[str] = []
        messages = len(request.study.workload.messages)
        if request.blocks < BLOCKS or request.tolerance > TOLERANCE or request.points < min(POINTS, messages):
            doubts.append(
                f"give at least --points {POINTS} and --blocks {BLOCKS}, and at most --tolerance {TOLERANCE:g}"
            )
        for earlier in standing:
            if not earlier.launches and unknown:
                doubts.append(f"{', '.join(unknown)} not known here")
            if not earlier.changes and self.launches < earlier.launches:
                launches = count_noun(self.launches, "launch", "launches")
                doubts.append(f"{launches}, the earlier recheck had {earlier.launches}")
            for change in earlier.changes:
                if _makes_stale(change):
                    doubts += self._doubt_change(change, now.get(change.what))
        if not doubts:
            return []
        reasons = [reason for reason in standing[0].reasons if not reason.startswith(_TOO_WEAK)]
        return [f"{_TOO_WEAK}: {'; '.join(dict.fromkeys(doubts))}", *reasons]

    def _doubt_change(self, change: Change, now: Change | None) -> list[str]:
        """List why a change of an earlier recheck may still be there."""
        before = f"{change.what}, which changed by {(change.ratio - 1) * 100:+.1f} %"
        if now is None:
            return [f"{before}, was not measured again"]
        hidden = max(now.noise, self.min_effect if change.what == _GAIN else self.request.tolerance)
        if math.log1p(hidden) < abs(math.log(change.ratio)):
            return []
        return [f"{before}, could change by {hidden * 100:.1f} % unnoticed"]


def _build_recheck(
    request: RecheckRequest,
    reasons: Sequence[str],
    changes: tuple[Change, ...],
    *,
    launches: int,
    launcher: str,
    now: str,
) -> Recheck:
    recommendation = request.recommendation
    return Recheck(
        id=hashlib.sha256(f"{recommendation.id}{now}{reasons}{changes}".encode()).hexdigest()[:12],
        recommendation=recommendation.id,
        cluster=recommendation.cluster,
        model=recommendation.model,
        freshness=Freshness.STALE if reasons else Freshness.FRESH,
        reasons=tuple(reasons),
        changes=changes,
        launches=launches,
        launcher=launcher,
        created=now,
        driver=request.driver,
    )


def _makes_stale(change: Change) -> bool:
    """Check that a changed quantity is a gain of the recommendation; absolute times are notes."""
    return change.changed and change.ratio < 1 and change.what != TODAY_GAIN and not change.what.endswith(", us")


def compare(
    name: str, before: Sequence[float], now: Sequence[float], *, tolerance: float, deviations: float = DEVIATIONS
) -> Change:
    """Compare the geometric means of two sets of positive values, with pooled noise.

    Args:
        before, now: two or more values each.
        tolerance: max normal change of the mean, as a share.
        deviations: min standard errors of a change.
    """
    logs = [[math.log(value) for value in values] for values in (before, now)]
    means = [statistics.fmean(values) for values in logs]
    squares = sum((value - mean) ** 2 for values, mean in zip(logs, means, strict=True) for value in values)
    scatter = max(_LEAST_NOISE, math.sqrt(squares / (len(before) + len(now) - 2)))
    error = scatter * math.sqrt(1 / len(before) + 1 / len(now))
    return Change(
        what=name,
        before=math.exp(means[0]),
        now=math.exp(means[1]),
        noise=math.expm1(deviations * error),
        changed=abs(means[1] - means[0]) > max(deviations * error, math.log1p(tolerance)),
    )
