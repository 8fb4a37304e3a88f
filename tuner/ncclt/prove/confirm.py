"""Confirmation: the best settings of the search are launched again before the arms of the proof are built from them.

Where no tuner table can be delivered, the arm is the best policy that plain variables can express: one choice per
collective for all sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ncclt.core.algorithms import Protocol
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule, uniform_policy
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.measure.trial import TrialLog, launch
from ncclt.nccl.compile import TUNER_API_SINCE, compile_policy
from ncclt.nccl.numerics import SameBits, compare_bits
from ncclt.prove.interleave import can_apply
from ncclt.prove.payback import step_gain
from ncclt.search.assemble import KEPT_GAIN, Times, assemble, collect_times, expected_us, find_finalists, rank_settings
from ncclt.search.gaussian_process import posterior_mean

CONFIRMED_LAUNCHES = 3
"""Launches of a setting, search included, that make its times trustworthy enough for a policy.

The best of many noisy trials is partly the luckiest one; after two more launches its median is realistic.
"""

_FASTEST_ALONE = 2
"""Settings that are best for a workload as a whole, confirmed where variables may deliver them."""

_MOST_TIMES = 3
"""Most launches of a confirmation, by those that were missing at its beginning: each lucky finalist that falls back
brings up another one."""


def confirm(
    runner: Runner,
    workload: Workload,
    trial_log: TrialLog,
    *,
    with_variables: bool = False,
    min_effect: float = 0.0,
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, int], None],
) -> Times:
    """Launch the finalists until they are confirmed; return the times of everything measured so far.

    Where one launch can apply a whole table, the best one is launched, which confirms all its settings at once;
    elsewhere, each of them. New finalists may come up when a lucky one falls back, so what is best is asked before each
    launch; what is still unconfirmed in the end does not enter the policy. If persistent ranks did the search, only
    launches of fresh ones count from here on, the default's too: both sides of a comparison must be measured alike.

    Args:
        workload: placed.
        with_variables: what variables can say will be proven too; the settings that are best for everything, from which
            that is chosen, are confirmed beside those of the policy.
        min_effect: smallest gain that justifies a change, as a share. The times that are to be confirmed flatter a
            policy; where even they predict less, nothing is launched.
        interrupted: called before every launch; returns why to stop, empty = continue.
        watch: called after every launch with the trial, launches done and planned in this round.
    """
    launched, max_launches = 0, 0
    while missing := _count_missing_launches(
        runner, workload, trial_log.trials(), with_variables=with_variables, min_effect=min_effect
    ):
        max_launches = max_launches or _MOST_TIMES * missing.total()
        if launched == max_launches or interrupted():
            break
        setting, policy = max(missing, key=lambda candidate: missing[candidate])
        trial = launch(runner, workload, trial_log, setting, phase=Phase.CONFIRM, policy=policy)
        launched += 1
        watch(trial, launched, min(launched - 1 + missing.total(), max_launches))
    return confirmed_times(trial_log.trials())


def _count_missing_launches(
    runner: Runner,
    workload: Workload,
    trials: Sequence[Trial],
    *,
    with_variables: bool,
    min_effect: float,
) -> Counter[tuple[Setting, Policy | None]]:
    """Count the launches that are missing, the default first; for arguments see `confirm`."""
    version = runner.cluster.version
    informative = _before_proof(trials)
    times, fresh = _rescale_persistent(informative), collect_times(_fresh(informative))
    expected = posterior_mean(times, workload, runner.cluster)
    # What a failed launch of a table shows of its settings is not known, so each is launched alone then.
    has_failed = any(t.policy is not None and t.result.outcome is not Outcome.OK for t in informative)
    table = assemble(expected, workload, version=version, keep=KEPT_GAIN)
    if predicted_gain(table, times, workload, version=version) < min_effect and not with_variables:
        return Counter()
    one_launch = version >= TUNER_API_SINCE and can_apply(runner, table)
    as_table = one_launch and not has_failed
    alone = [DEFAULT]
    if not as_table:
        alone += find_finalists(expected, workload, version=version)
    if with_variables or not one_launch:
        alone += rank_settings(expected, workload)[:_FASTEST_ALONE]
    missing: Counter[tuple[Setting, Policy | None]] = Counter()
    for setting in alone:
        missing[setting, None] = CONFIRMED_LAUNCHES - fresh.fewest(setting)
    if as_table and not table.is_default:
        counts = [fresh.count(table.setting_for(calls.message), calls.message) for calls in workload.messages]
        missing[Setting(parameters=table.parameters), table] = CONFIRMED_LAUNCHES - min(counts)
    return +missing


def _rescale_persistent(trials: Sequence[Trial]) -> Times:
    """Return the times of all launches. What ranks that stayed up took counts by its ratio to their default's times."""
    times, fresh = collect_times(trials), collect_times(_fresh(trials))
    warm = collect_times(t for t in trials if t.result.persistent)
    if DEFAULT not in fresh.by_setting or DEFAULT not in warm.by_setting:
        return times
    scale = {m: fresh.default[m] / time_us for m, time_us in warm.default.items() if m in fresh.default}
    by_setting = {
        s: {m: time_us * scale[m] for m, time_us in warm.by_setting.get(s, {}).items() if m in scale}
        | dict(fresh.by_setting.get(s, {}))
        for s in times.by_setting
    }
    return replace(times, by_setting=by_setting)


def confirmed_times(trials: Sequence[Trial]) -> Times:
    """Return the times measured by search and confirmation, from all trials of a study."""
    before = _before_proof(trials)
    fresh = _fresh(before)
    good = (t for t in fresh if t.tries_setting and t.result.outcome is Outcome.OK)
    # Those of fresh ranks may be compared, or all while the default has none of these.
    return collect_times(fresh if any(t.setting.is_default for t in good) else before)


def _fresh(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if not trial.result.persistent]


def _before_proof(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of search and confirmation; the proof must not help to choose what it judges."""
    return [t for t in trials if t.phase is not Phase.PROVE]


def predicted_gain(
    policy: Policy, times: Times, workload: Workload, *, version: NcclVersion, by_variables: bool = False
) -> float:
    """Return the gain that the measured times predict for a policy, as a share of its own time."""
    default_us = expected_us(Policy(), times, workload, version=version)
    return default_us / expected_us(policy, times, workload, version=version, by_variables=by_variables) - 1


def choose_arms(
    times: Times,
    workload: Workload,
    runner: Runner,
    *,
    min_effect: float,
    with_variables: bool,
    today: bool = False,
    deterministic: bool = False,
) -> tuple[dict[Arm, Policy], str]:
    """Choose the arms that are worth proving: the per-size policy, or the best policy that variables can express.

    An arm that even its confirmed times, which flatter it, predict to gain less than the minimum is not launched.
    Without a tuner API, or without rows that name algorithm and protocol, there is no table. Where one launch cannot
    apply it, it costs a launch per setting and side, and variables that gain as much but for `MIN_GAIN` are proven
    instead.

    Args:
        workload: placed.
        min_effect: smallest gain that justifies a change, as a share.
        today: the job sets tuning variables today, so the default is compared with them in any case.
        deterministic: only policies that keep the order of additions of the NCCL default.

    Returns:
        the policies by arm, the default first; and the reason why there is no other arm, empty where there is one.
    """
    version, expected = runner.cluster.version, posterior_mean(times, workload, runner.cluster)

    def is_allowed(arm: Arm, policy: Policy) -> bool:
        bits = compare_bits(policy, version=version, by_variables=arm is Arm.VARIABLES).same_bits
        return not deterministic or bits is SameBits.YES

    confirmed_table = assemble(expected, workload, version=version, min_launches=CONFIRMED_LAUNCHES, keep=KEPT_GAIN)
    has_rows = version >= TUNER_API_SINCE and all(rule.algorithm and rule.protocol for rule in confirmed_table.rules)
    policies: dict[Arm, Policy] = {Arm.TABLE: confirmed_table} if has_rows else {}
    if not confirmed_table.rules and not confirmed_table.is_default:
        policies = {Arm.VARIABLES: confirmed_table}  # parameters alone need no table, and so no plugin
    by_sums = Arm.TABLE in policies and not can_apply(runner, policies[Arm.TABLE])
    if Arm.VARIABLES not in policies and (with_variables or by_sums or not policies):
        by_variables = partial(is_allowed, Arm.VARIABLES)
        policies[Arm.VARIABLES] = _find_confirmed_uniform(times, workload, version=version, is_allowed=by_variables)
    gains = {
        arm: predicted_gain(policy, times, workload, version=version, by_variables=arm is Arm.VARIABLES)
        for arm, policy in policies.items()
        if not policy.is_default and is_allowed(arm, policy)
    }
    if by_sums and not with_variables and len(gains) > 1:
        del gains[Arm.TABLE if gains[Arm.VARIABLES] >= gains[Arm.TABLE] - MIN_GAIN else Arm.VARIABLES]
    worth = {arm: policies[arm] for arm, gain in gains.items() if gain >= min_effect}
    default = {Arm.DEFAULT: Policy()} | ({Arm.TODAY: Policy()} if today else {})
    if worth:
        return {**default, **worth}, ""
    # Without a finalist, the prediction of all launches was already too low, or was not confirmed.
    hoped = assemble(expected, workload, version=version, keep=KEPT_GAIN)
    gain = max(gains.values(), default=predicted_gain(hoped, times, workload, version=version))
    if gain < min_effect or hoped.is_default:
        return default, _explain_low_gain(workload, gain, min_effect) if gains or not hoped.is_default else ""
    if Arm.TABLE in policies or hoped != confirmed_table:
        return default, f"predicted gain {gain * 100:.1f} % was not confirmed by further launches; validation skipped"
    return default, _explain_undeliverable(hoped, workload, gain, version)


def _find_confirmed_uniform(
    times: Times, workload: Workload, *, version: NcclVersion, is_allowed: Callable[[Policy], bool]
) -> Policy:
    """Return the best confirmed policy that variables can express; the default where none is worth it."""

    def is_expressible(policy: Policy) -> bool:
        complete = compile_policy(policy, version=version, collectives=workload.collectives).complete
        return complete and is_allowed(policy)

    by_setting = {s: t for s, t in times.by_setting.items() if times.fewest(s) >= CONFIRMED_LAUNCHES}
    confirmed = Times(by_setting=by_setting, launches=times.launches)
    return find_uniform_policy(confirmed, workload, version=version, expressible=is_expressible) or Policy()


def _explain_undeliverable(policy: Policy, workload: Workload, gain: float, version: NcclVersion) -> str:
    """Return the reason for which a measured gain can be delivered neither by a table nor by variables."""
    lost = compile_policy(policy, version=version, collectives=workload.collectives).lost
    has_api = version >= TUNER_API_SINCE
    no_table = "a table carries no channels alone" if has_api else f"NCCL {version} reads no tuner table"
    return (
        f"measured gain {gain * 100:.1f} %, but {no_table} and variables cannot deliver it "
        f"({'; '.join(lost)}); validation skipped"
    )


def _explain_low_gain(workload: Workload, gain: float, min_effect: float) -> str:
    """Return the reason for which a gain is not proven, with its share of the step where that is known."""
    step = step_gain(workload, 1 + gain)
    at_step = "" if step is None else f", at most {step * 100:.2g} % of a step"
    if least := step_gain(workload, 1 + min_effect):
        at_step = f" ({least / (1 - least) * 100:.3g} % of a step){at_step}"
    return f"predicted gain {gain * 100:.1f} % < {min_effect * 100:.3g} % threshold{at_step}; validation skipped"


MIN_GAIN = 0.01
"""Expected gain over the default, as a share, from which a uniform policy is proven."""


def find_uniform_policy(
    times: Times, workload: Workload, *, version: NcclVersion, expressible: Callable[[Policy], bool]
) -> Policy | None:
    """Return the uniform policy with the least expected time per step, or None where the default is as good.

    One channel count and one set of process-wide parameters apply to all collectives; algorithm and protocol are
    chosen per collective among the settings that were measured with them. LL128 cannot be forced by variables
    without bypassing NCCL's safety check, so it is not a candidate.

    Args:
        times: must contain the default.
        workload: placed.
        expressible: returns whether the variables of this NCCL version can express a whole policy.
    """
    default_us = expected_us(Policy(), times, workload, version=version)
    ranked = sorted(
        (
            (expected_us(policy, times, workload, version=version, by_variables=True), policy)
            for policy in _uniform_candidates(times, workload, version)
        ),
        key=lambda pair: (pair[0], pair[1].digest()),
    )
    for time_us, policy in ranked:
        if time_us > default_us * (1 - MIN_GAIN):
            return None
        if expressible(policy):
            return policy
    return None


def _uniform_candidates(times: Times, workload: Workload, version: NcclVersion) -> Iterator[Policy]:
    """Yield every single measured setting, and per channels and parameters the best mixture over collectives."""
    usable = [s for s in times.by_setting if s.protocol is not Protocol.LL128 and not s.is_default]
    for setting in usable:
        yield uniform_policy(setting, workload.collectives, version=version)
    tunable = sorted(c for c in workload.collectives if c.is_tunable)
    if len(tunable) < 2:
        return
    for channels, parameters in sorted({(s.channels or 0, s.parameters) for s in usable}):
        group = [s for s in usable if (s.channels or 0, s.parameters) == (channels, parameters)]
        rules: list[Rule] = []
        for collective in tunable:
            sent = [calls for calls in workload.messages if calls.message.collective is collective]
            costs_us = {
                s: sum(c.calls_per_step * times.by_setting[s].get(c.message, float("inf")) for c in sent) for s in group
            }
            best = min(costs_us, key=lambda s: (costs_us[s], s.digest()))
            rules += uniform_policy(best, (collective,), version=version).rules
        yield Policy(rules=tuple(rules), parameters=parameters)
