"""From the measurements of many settings to the one policy that is worth proving."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import MessageCalls, Workload
from ncclt.search.noise import USUAL_SIGMA, launch_sigma, typical_us

MIN_MESSAGE_GAIN = 0.01
"""Share by which a setting must beat the default on a message before it gets a rule; less is noise or not worth it."""

CONFIDENCE = 0.6
"""A setting is confirmed if it beats the default by `MIN_MESSAGE_GAIN` with this probability, given the noise between
launches. Only the interleaved proof decides; here a missed gain costs as much as a false one."""

CONFIRMED_Z = statistics.NormalDist().inv_cdf(CONFIDENCE)
"""The same as standard deviations between setting and default."""

MIN_GROUP_GAIN = 0.005
"""Share of time per step that changing a process-wide parameter must bring over leaving it alone."""

REACH = math.sqrt(2)
"""A rule covers sizes within this factor of a measured one: beyond it nothing was measured."""

Parameters = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What is known about every setting that was measured without fault.

    Attributes:
        by_setting: setting -> message -> typical time of one call over all its launches, µs.
        launches: setting -> launches with outcome `ok`.
        sigma: standard deviation of the logarithm of a time between launches of one setting.
    """

    by_setting: Mapping[Setting, Mapping[Message, float]]
    launches: Mapping[Setting, int]
    sigma: float = USUAL_SIGMA

    @property
    def default(self) -> Mapping[Message, float]:
        """Return the times of NCCL's own choice."""
        return self.by_setting[DEFAULT]


def collect_times(trials: Iterable[Trial]) -> Times:
    """Gather the times of all settings that can be trusted to run.

    One wrong result rules a setting out for good. Any other failure may be a node that was lost, so it rules a setting
    out until it has succeeded more often than it failed; the proof allows no failure at all. The default always stays,
    as everything is compared with it.
    """
    samples: dict[Setting, dict[Message, list[float]]] = {}
    launches: dict[Setting, int] = {}
    wrong: set[Setting] = set()
    failures: dict[Setting, int] = {}
    for trial in trials:
        if trial.result.outcome is Outcome.WRONG_RESULT:
            wrong.add(trial.setting)
        if trial.result.outcome is not Outcome.OK:
            failures[trial.setting] = failures.get(trial.setting, 0) + 1
            continue
        launches[trial.setting] = launches.get(trial.setting, 0) + 1
        mine = samples.setdefault(trial.setting, {})
        for measurement in trial.result.measurements:
            mine.setdefault(measurement.message, []).append(measurement.time_us)
    sigma = launch_sigma([times for mine in samples.values() for times in mine.values() if len(times) > 1])
    by_setting = {
        setting: {message: typical_us(times, sigma) for message, times in mine.items()}
        for setting, mine in samples.items()
        if setting.is_default or (setting not in wrong and failures.get(setting, 0) < launches[setting])
    }
    return Times(by_setting=by_setting, launches={s: n for s, n in launches.items() if s in by_setting}, sigma=sigma)


def assemble(
    times: Times, workload: Workload, *, version: NcclVersion, min_launches: int = 1, confirmed: bool = False
) -> Policy:
    """Return the per-size policy with the least expected time per step.

    All rules of a policy share their process-wide parameters, since one process has one value of each: the best
    policy of every parameter group is built, and the best group wins. Within the group without parameters a message
    keeps the default unless a setting beats it by `MIN_MESSAGE_GAIN`.

    Args:
        times: must hold the default.
        workload: placed, so its messages equal the measured ones.
        version: of NCCL: what of a setting reaches which collective.
        min_launches: settings measured less often are not considered.
        confirmed: take only what beats the default with the probability `CONFIDENCE`; else a better time will do.
    """
    z = CONFIRMED_Z if confirmed else 0.0
    chosen = _best_candidate(times, workload, version=version, min_launches=min_launches, z=z)
    applied = {m: s.applied_to(m.collective, version=version) for m, s in chosen.choices.items()}
    return Policy(rules=_rules(applied), parameters=chosen.parameters)


def finalists(times: Times, workload: Workload, *, version: NcclVersion, singles: int = 2) -> tuple[Setting, ...]:
    """Return the settings that deserve another launch: those of the best policy, and the best single ones.

    Args:
        times: must hold the default.
        workload: placed.
        version: of NCCL.
        singles: how many of the settings that are best for the workload as a whole are added.
    """
    chosen = _best_candidate(times, workload, version=version, min_launches=1, z=0.0)

    def total_us(setting: Setting) -> float:
        measured = times.by_setting[setting]
        return sum(c.calls_per_step * measured.get(c.message, math.inf) for c in workload.messages)

    ranked = sorted(times.by_setting, key=lambda s: (total_us(s), s.digest()))
    return tuple(dict.fromkeys([DEFAULT, *chosen.choices.values(), *ranked[:singles]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """The best choice per message within one group of process-wide parameters."""

    parameters: Parameters
    choices: Mapping[Message, Setting]
    time_us: float


def _best_candidate(
    times: Times, workload: Workload, *, version: NcclVersion, min_launches: int, z: float
) -> _Candidate:
    known = [s for s in times.by_setting if times.launches[s] >= min_launches or s.is_default]
    groups = sorted({s.parameters for s in known})
    candidates = [_group_policy(times, workload, known, parameters=p, version=version, z=z) for p in groups]
    plain = next(c for c in candidates if not c.parameters)
    best = min(candidates, key=lambda c: c.time_us)
    return best if best.time_us < plain.time_us * (1 - MIN_GROUP_GAIN) else plain


def _group_policy(
    times: Times, workload: Workload, known: list[Setting], *, parameters: Parameters, version: NcclVersion, z: float
) -> _Candidate:
    group = [s for s in known if s.parameters == parameters]
    unforced = Setting(parameters=parameters)
    choices: dict[Message, Setting] = {}
    total = 0.0
    for calls in workload.messages:
        message = calls.message
        measured = [(times.by_setting[s][message], s) for s in group if message in times.by_setting[s]]
        if not measured:
            return _Candidate(parameters=parameters, choices={}, time_us=math.inf)
        own = times.by_setting.get(unforced, {}).get(message)
        if own is not None:
            measured = [(own, unforced)] + [
                (time_us, setting)
                for time_us, setting in measured
                if _reaches(setting, unforced, message, version)
                and time_us <= own * (1 - MIN_MESSAGE_GAIN) * math.exp(-z * _sigma(times, setting, unforced))
            ]
        # Ties go to the setting that forces least, then to a fixed order, so that a seed gives one result.
        time_us, setting = min(measured, key=lambda pair: (pair[0], len(pair[1].to_document()), pair[1].digest()))
        choices[message] = setting
        total += calls.calls_per_step * time_us
    return _Candidate(parameters=parameters, choices=choices, time_us=total)


def _reaches(setting: Setting, unforced: Setting, message: Message, version: NcclVersion) -> bool:
    """Return whether a setting takes effect on a message in full.

    Where the collective lacks the pair, the channels alone take effect: a by-product, not what was chosen.
    """
    applied = setting.applied_to(message.collective, version=version)
    return applied != unforced and (applied.algorithm, applied.protocol) == (setting.algorithm, setting.protocol)


def _sigma(times: Times, *settings: Setting) -> float:
    """Return the standard deviation of the difference of two settings' logarithms of time."""
    return times.sigma * math.sqrt(sum(1 / times.launches[setting] for setting in settings))


def _rules(choices: Mapping[Message, Setting]) -> tuple[Rule, ...]:
    families: dict[tuple[Collective, int], dict[int, Setting]] = {}
    for message, setting in sorted(choices.items()):
        if message.collective.is_tunable:
            # NCCL's tuner sees bytes only, so two dtypes of one size are one case: the first one decides.
            families.setdefault((message.collective, message.group_size), {}).setdefault(message.size_bytes, setting)
    rules: list[Rule] = []
    for (collective, group_size), sizes in families.items():
        rules += _family_rules(collective, group_size, sizes)
    return tuple(rules)


def _family_rules(collective: Collective, group_size: int, sizes: Mapping[int, Setting]) -> list[Rule]:
    ordered = sorted(sizes)
    rules: list[Rule] = []
    for position, size in enumerate(ordered):
        setting = sizes[size]
        if not (setting.algorithm or setting.protocol or setting.channels):
            continue
        low = math.ceil(size / REACH)
        if position:
            low = max(low, math.isqrt(ordered[position - 1] * size) + 1)
        high = math.floor(size * REACH)
        if position + 1 < len(ordered):
            high = min(high, math.isqrt(size * ordered[position + 1]))
        rule = Rule(
            collective=collective,
            min_bytes=min(low, size),
            max_bytes=max(high, size),
            group_size=group_size,
            algorithm=setting.algorithm,
            protocol=setting.protocol,
            channels=setting.channels,
        )
        if rules and _adjoins(rules[-1], rule):
            rule = replace(rule, min_bytes=rules.pop().min_bytes)
        rules.append(rule)
    return rules


def _adjoins(before: Rule, rule: Rule) -> bool:
    same = (before.algorithm, before.protocol, before.channels) == (rule.algorithm, rule.protocol, rule.channels)
    return same and before.max_bytes is not None and before.max_bytes + 1 >= rule.min_bytes


def expected_us(
    policy: Policy, times: Times, workload: Workload, *, version: NcclVersion, by_variables: bool = False
) -> float:
    """Return the time per step that the measurements predict for a policy, µs; infinite where one is missing."""
    total = 0.0
    for calls in workload.messages:
        found = message_time_us(policy, times, calls, version=version, by_variables=by_variables)
        total += calls.calls_per_step * found
    return total


def message_time_us(
    policy: Policy, times: Times, calls: MessageCalls, *, version: NcclVersion, by_variables: bool = False
) -> float:
    """Return the measured time of one call of a message under a policy, µs; infinite where it was not measured.

    All settings with the same effect on the message measured the same thing. Where there is none, one that left NCCL
    more or less to choose from stands in for it.

    Args:
        policy: delivered by a table, which touches what it names alone, or by variables.
        times: measured.
        calls: of the message.
        version: of NCCL.
        by_variables: whether plain variables deliver it.
    """
    message = calls.message
    wanted = policy.setting_by_variables(message, version=version) if by_variables else policy.setting_for(message)
    same: list[float] = []
    alike: list[float] = []
    for setting, known in times.by_setting.items():
        applied = setting.applied_to(message.collective, version=version)
        if message not in known:
            continue
        if applied == wanted:
            same.append(known[message])
        elif applied.confined != wanted.confined and replace(applied, confined=wanted.confined) == wanted:
            alike.append(known[message])
    measured = same or alike
    return statistics.median(measured) if measured else math.inf
