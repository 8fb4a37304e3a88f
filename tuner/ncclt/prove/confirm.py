"""Confirmation: what the search considers best is launched again before a policy is built from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.measure.trial import TrialLog, launch
from ncclt.nccl.compile import TUNER_API_SINCE, compile_policy
from ncclt.prove.collapse import MIN_GAIN, collapse
from ncclt.prove.interleave import applies
from ncclt.search.assemble import KEPT_GAIN, Times, assemble, collect_times, expected_us, finalists
from ncclt.search.posterior import believed

CONFIRMED_LAUNCHES = 3
"""Launches of a setting, search included, that make its times trustworthy enough for a policy.

The best of many noisy trials is partly the luckiest one; after two more launches its median is realistic.
"""

_ROUNDS = 3


def confirm(
    runner: Runner,
    workload: Workload,
    trial_log: TrialLog,
    *,
    parts: Sequence[Workload] = (),
    with_variables: bool = False,
    min_effect: float = 0.0,
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, int], None],
) -> Times:
    """Launch the finalists until they are confirmed; return the times of everything measured so far.

    New finalists may come up when a lucky one falls back, so there are up to three rounds; what is still unconfirmed
    then does not enter the policy. If persistent ranks did the search, only launches of fresh ones count from here on,
    the default's too: both sides of a comparison must be measured in the same way.

    Args:
        runner: where trials run.
        workload: placed.
        trial_log: where trials are kept.
        parts: the workloads that share these launches, each of which gets a policy; empty = `workload` alone.
        with_variables: what variables can say will be proven too; the settings that are best for everything, from which
            that is chosen, are confirmed beside those of the policy.
        min_effect: smallest gain that justifies a change, as a share. The times that are to be confirmed flatter a
            policy; where even they predict less, nothing is launched.
        interrupted: called before every launch; returns why to stop, empty = continue.
        watch: called after every launch with the trial, launches done and planned in this round.
    """
    version = runner.cluster.version
    for _ in range(_ROUNDS):
        informative = _informative(trial_log.trials())
        launches = Counter(t.setting for t in _fresh(informative) if t.result.outcome is Outcome.OK)
        times = collect_times(informative)
        expected = believed(times, workload, runner.cluster)
        wanted: dict[Setting, None] = {}
        for part in parts or (workload,):
            table = assemble(expected, part, version=version)
            if predicted_gain(table, times, part, version=version) < min_effect and not with_variables:
                continue
            one_launch = version >= TUNER_API_SINCE and applies(runner, table)
            singles = 2 if with_variables or not one_launch else 0
            wanted |= dict.fromkeys(finalists(expected, part, version=version, singles=singles))
        pending = [setting for setting in wanted for _ in range(CONFIRMED_LAUNCHES - launches[setting])]
        for number, setting in enumerate(pending, start=1):
            if interrupted():
                break
            watch(launch(runner, workload, trial_log, setting, phase=Phase.CONFIRM), number, len(pending))
        if not pending or interrupted():
            break
    return confirmed_times(trial_log.trials())


def confirmed_times(trials: Sequence[Trial]) -> Times:
    """Return the times measured by search and confirmation, from all trials of a study."""
    return collect_times(_alike(_informative(trials)))


def _alike(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials that may be compared: those of fresh ranks, or all while the default has none of these."""
    fresh = _fresh(trials)
    return fresh if any(t.setting.is_default and t.result.outcome is Outcome.OK for t in fresh) else trials


def _fresh(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if not trial.result.persistent]


def _informative(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of search and confirmation; the proof must not help to choose what it judges."""
    return [t for t in trials if t.phase is not Phase.VERIFY]


def predicted_gain(
    policy: Policy, times: Times, workload: Workload, *, version: NcclVersion, by_variables: bool = False
) -> float:
    """Return the gain that the measured times predict for a policy, as a share of its own time."""
    default_us = expected_us(Policy(), times, workload, version=version)
    return default_us / expected_us(policy, times, workload, version=version, by_variables=by_variables) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What is worth proving against the default.

    Attributes:
        policies: the arms of the proof, the default first; with the default alone there is nothing to prove.
        why: why there is not more, as one sentence; empty where there is.
    """

    policies: Mapping[Arm, Policy]
    why: str = ""


def candidates(
    times: Times,
    workload: Workload,
    runner: Runner,
    *,
    min_effect: float,
    with_variables: bool,
    among: Workload | None = None,
) -> Candidates:
    """Return the arms that are worth proving: the per-size policy, or the best that variables can say.

    An arm that even its confirmed times, which flatter it, predict to gain less than the minimum is not launched.
    Without a tuner API there is no table. Where one launch cannot apply it, it costs a launch per setting and side,
    and variables that gain as much but for `MIN_GAIN` are proven instead.

    Args:
        times: of search and confirmation.
        workload: placed.
        runner: of the proof.
        min_effect: smallest gain that justifies a change, as a share.
        with_variables: prove what variables can say too.
        among: the messages of all workloads that shared the launches, from which the model learns; None = `workload`.
    """
    version = runner.cluster.version
    expected = believed(times, among or workload, runner.cluster)

    def expressible(policy: Policy) -> bool:
        return compile_policy(policy, version=version, collectives=workload.collectives).complete

    found: dict[Arm, Policy] = {}
    if version >= TUNER_API_SINCE:
        found[Arm.TABLE] = assemble(
            expected, workload, version=version, min_launches=CONFIRMED_LAUNCHES, keep=KEPT_GAIN
        )
    by_sums = Arm.TABLE in found and not applies(runner, found[Arm.TABLE])
    if with_variables or by_sums or not found:
        confirmed = Times(
            by_setting={s: t for s, t in times.by_setting.items() if times.launches[s] >= CONFIRMED_LAUNCHES},
            launches=times.launches,
        )
        found[Arm.VARIABLES] = collapse(confirmed, workload, version=version, expressible=expressible) or Policy()
    gains = {
        arm: predicted_gain(policy, times, workload, version=version, by_variables=arm is Arm.VARIABLES)
        for arm, policy in found.items()
        if not policy.is_default
    }
    if by_sums and not with_variables and len(gains) > 1:
        del gains[Arm.TABLE if gains[Arm.VARIABLES] >= gains[Arm.TABLE] - MIN_GAIN else Arm.VARIABLES]
    worth = {arm: found[arm] for arm, gain in gains.items() if gain >= min_effect}
    why = ""
    if not worth:
        # Without a finalist, the search's own prediction was already too low.
        hoped = assemble(expected, workload, version=version)
        gain = max(gains.values(), default=predicted_gain(hoped, times, workload, version=version))
        after = "confirmation" if gains else "the search"
        if gains or not hoped.is_default:
            why = (
                f"the predicted gain of {gain * 100:.1f} % (after {after}) is below the minimum of "
                f"{min_effect * 100:g} %; not proven"
            )
    return Candidates(policies={Arm.DEFAULT: Policy(), **worth}, why=why)
