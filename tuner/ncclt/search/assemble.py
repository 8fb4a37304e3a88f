"""From the measurements of many settings to the one policy that is worth proving."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclt.core.message import Collective, Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import MessageCalls, Workload
from ncclt.search.noise import USUAL_SIGMA, launch_sigma, typical_us

MIN_GAIN = 0.005
"""Min expected saving, as a share: of a rule on its message; of a process-wide parameter, the next launch, or the last
launches of the patience on a step.

With 0.001 for launches, three in a row, a study of two recorded nodes takes 24.1 instead of 19.6 launches and deploys
the same gain (`bench/study_cost.py`, 1 seed).
"""

KEPT_GAIN = 0.98
"""Share of the gain that a policy keeps when it is reduced to the fewest rules: more rules are more to prove."""

REACH = math.sqrt(2)
"""A rule covers sizes within this factor of a measured one: beyond it nothing was measured."""

GAP = 8
"""Between two measured sizes within this factor there is no gap: rules meet in the middle, and equal ones are one."""

Parameters = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of every setting that was measured without fault.

    Attributes:
        by_setting: setting -> message -> typical time of one call over all its launches, µs.
        launches: setting -> message -> launches with outcome `ok`, of the setting or of a policy that holds it.
        sigma: standard deviation of the logarithm of a time between launches of one setting.
    """

    by_setting: Mapping[Setting, Mapping[Message, float]]
    launches: Mapping[Setting, Mapping[Message, int]]
    sigma: float = USUAL_SIGMA

    @property
    def default(self) -> Mapping[Message, float]:
        """Return the times of the NCCL default."""
        return self.by_setting[DEFAULT]

    def count(self, setting: Setting, message: Message) -> int:
        """Return the number of launches of a message under a setting."""
        return self.launches.get(setting, {}).get(message, 0)

    def fewest(self, setting: Setting) -> int:
        """Return the launches of the message that was launched least often under a setting."""
        return min(self.launches.get(setting, {}).values(), default=0)

    def with_launches(self, least: int) -> Times:
        """Return the times with at least so many launches of message and setting; all times of the default."""
        by_setting = {
            s: {m: us for m, us in times_us.items() if s.is_default or self.count(s, m) >= least}
            for s, times_us in self.by_setting.items()
        }
        return replace(self, by_setting=by_setting)


def collect_times(trials: Iterable[Trial]) -> Times:
    """Gather the times of all settings that can be trusted to run.

    One wrong result rules a setting out for good. Any other failure may be a node that was lost, so it rules a setting
    out until it has succeeded more often than it failed; the proof allows no failure at all. The default always stays,
    as everything is compared with it. A policy that failed says nothing about its settings; one that ran shows for each
    setting what its messages took.
    """
    samples: dict[Setting, dict[Message, list[float]]] = {}
    ruled_out: set[Setting] = set()
    succeeded: Counter[Setting] = Counter()
    for trial in trials:
        fine = trial.result.outcome is Outcome.OK
        if trial.policy is None:
            succeeded[trial.setting] += 1 if fine else -1
            ruled_out |= {trial.setting} if trial.result.outcome is Outcome.WRONG_RESULT else set()
        for measurement in trial.result.measurements if fine else ():
            by_message = samples.setdefault(trial.setting_for(measurement.message), {})
            by_message.setdefault(measurement.message, []).append(measurement.time_us)
    ruled_out |= {setting for setting, successes in succeeded.items() if successes <= 0}
    repeated = [times for by_message in samples.values() for times in by_message.values() if len(times) > 1]
    sigma = launch_sigma(repeated)
    good = {s: by_message for s, by_message in samples.items() if s.is_default or s not in ruled_out}
    return Times(
        by_setting={
            s: {m: typical_us(times, sigma) for m, times in by_message.items()} for s, by_message in good.items()
        },
        launches={s: {m: len(times) for m, times in by_message.items()} for s, by_message in good.items()},
        sigma=sigma,
    )


def assemble(
    times: Times, workload: Workload, *, version: NcclVersion, min_launches: int = 1, keep: float = 1.0
) -> Policy:
    """Return the per-size policy with the least expected time per step.

    All rules of a policy share their process-wide parameters, since one process has one value of each: the best
    policy of every parameter group is built, and the best group wins. Within the group without parameters a message
    keeps the default unless a setting beats it by `MIN_GAIN`.

    Args:
        times: must hold the default; posterior means (`gaussian_process.posterior_mean`) are best, since the fastest of
            many noisy launches was partly lucky.
        workload: placed, so its messages equal the measured ones.
        version: of NCCL: what of a setting reaches which collective.
        min_launches: settings measured less often are not considered.
        keep: share of the gain that is enough: the policy has the fewest rules that reach it.
    """
    times = times.with_launches(min_launches)
    chosen = _find_best_candidate(times, workload, version)
    if keep < 1:
        chosen = _reduce_rules(chosen, times, workload, version, keep=keep)
    applied = {m: s.applied_to(m.collective, version=version) for m, s in chosen.choices.items()}
    return Policy(rules=build_rules(applied), parameters=chosen.parameters)


def find_finalists(times: Times, workload: Workload, *, version: NcclVersion) -> tuple[Setting, ...]:
    """Return the settings of the best policy, each once; for arguments see `assemble`."""
    return tuple(dict.fromkeys(_find_best_candidate(times, workload, version).choices.values()))


def rank_settings(times: Times, workload: Workload) -> list[Setting]:
    """Return the settings by what the workload as a whole takes under each, the fastest first."""

    def total_us(setting: Setting) -> float:
        measured = times.by_setting[setting]
        return sum(c.calls_per_step * measured.get(c.message, math.inf) for c in workload.messages)

    return sorted(times.by_setting, key=lambda s: (total_us(s), s.digest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """The best choice per message within one group of process-wide parameters."""

    parameters: Parameters
    choices: Mapping[Message, Setting]
    time_us: float


def _find_best_candidate(times: Times, workload: Workload, version: NcclVersion) -> _Candidate:
    groups = sorted({s.parameters for s in times.by_setting})  # the one without parameters first
    plain, *others = (_build_group_candidate(times, workload, version, parameters) for parameters in groups)
    best = min(others, key=lambda c: c.time_us, default=plain)
    return best if best.time_us < plain.time_us * (1 - MIN_GAIN) else plain


def _build_group_candidate(
    times: Times, workload: Workload, version: NcclVersion, parameters: Parameters
) -> _Candidate:
    unforced = Setting(parameters=parameters)
    choices: dict[Message, Setting] = {}
    for message in (calls.message for calls in workload.messages):
        group = {s: us[message] for s, us in times.by_setting.items() if s.parameters == parameters and message in us}
        if (own := group.get(unforced)) is not None:
            enough = own * (1 - MIN_GAIN)
            group = {
                setting: time_us
                for setting, time_us in group.items()
                if setting == unforced or (_reaches(setting, unforced, message, version) and time_us <= enough)
            }
        if not group:
            return _Candidate(parameters=parameters, choices={}, time_us=math.inf)
        # Ties go to the setting that forces least, then to a fixed order, so that a seed gives one result.
        choices[message] = min(group, key=lambda s: (group[s], len(s.to_document()), s.digest()))
    total = sum(c.calls_per_step * times.by_setting[choices[c.message]][c.message] for c in workload.messages)
    return _Candidate(parameters=parameters, choices=choices, time_us=total)


def _reaches(setting: Setting, unforced: Setting, message: Message, version: NcclVersion) -> bool:
    """Check that a setting takes effect on a message in full.

    Where the collective lacks the pair, the channels alone take effect: a by-product, not what was chosen.
    """
    applied = setting.applied_to(message.collective, version=version)
    return applied != unforced and (applied.algorithm, applied.protocol) == (setting.algorithm, setting.protocol)


def _reduce_rules(
    best: _Candidate, times: Times, workload: Workload, version: NcclVersion, *, keep: float
) -> _Candidate:
    """Return the choices with the fewest rules that keep a share of the gain of the best ones.

    A message may take the choice of its neighbour if it gains by it as well, or the default; it never gets slower. The
    optimum is exact: for every number of rules the least time, size by size, then over the families of messages.
    """
    unforced = Setting(parameters=best.parameters)
    families: dict[_Family, dict[int, dict[Setting, float]]] = {}
    tunable_us = default_us = 0.0
    for calls in workload.messages:
        message, chosen = calls.message, best.choices[calls.message]
        default_us += calls.calls_per_step * times.default.get(message, math.inf)
        if not message.collective.is_tunable:
            continue
        tunable_us += calls.calls_per_step * times.by_setting[chosen][message]
        own = times.by_setting.get(unforced, {}).get(message, math.inf)
        allowed = {
            s: calls.calls_per_step * us[message]
            for s, us in times.by_setting.items()
            if s.parameters == best.parameters
            and message in us
            and (s in (chosen, unforced) or (_reaches(s, unforced, message, version) and us[message] <= own))
        }
        sizes = families.setdefault((message.collective, message.group_size, message.spans_nodes), {})
        # Two dtypes of one size are one case for NCCL's tuner: what suits only one of them is out.
        before = sizes.get(message.size_bytes)
        joined = allowed if before is None else {s: before[s] + us for s, us in allowed.items() if s in before}
        sizes[message.size_bytes] = joined or before or allowed
    ways: list[_Way] = [(best.time_us - tunable_us, {})]
    for family, sizes in families.items():
        ways = _combine(ways, _find_cheapest(family, sizes, unforced))
    enough_us = default_us - keep * (default_us - best.time_us)
    for time_us, settings in ways:
        if time_us <= enough_us * (1 + 1e-12):
            choices = {
                m: settings.get((m.collective, m.group_size, m.spans_nodes, m.size_bytes), setting)
                for m, setting in best.choices.items()
            }
            return _Candidate(parameters=best.parameters, choices=choices, time_us=time_us)
    return best


_Family = tuple[Collective, int, bool]
"""Messages that share rules: of one collective, group size and placement on the nodes."""

_Way = tuple[float, dict[tuple[Collective, int, bool, int], Setting]]
"""Time per step and the settings by size: the best with a number of rules."""


def _find_cheapest(family: _Family, sizes: Mapping[int, Mapping[Setting, float]], unforced: Setting) -> list[_Way]:
    """Return the least time with 0, 1, 2 ... rules for a family of messages."""
    ordered = sorted(sizes)
    reached: list[dict[Setting, tuple[float, tuple[Setting, ...]]]] = [{unforced: (0.0, ())}]
    for position, size in enumerate(ordered):
        joins = position > 0 and size <= ordered[position - 1] * GAP
        following: list[dict[Setting, tuple[float, tuple[Setting, ...]]]] = [{} for _ in range(len(reached) + 1)]
        for rules, states in enumerate(reached):
            if not states:
                continue
            cheapest = min(states.values(), key=lambda way: way[0])
            for setting, us in sizes[size].items():
                ends = [(rules + (setting != unforced), cheapest)]
                if joins and setting in states:
                    ends.append((rules, states[setting]))
                for needed, (time_us, path) in ends:
                    continuation = following[needed].get(setting)
                    if continuation is None or time_us + us < continuation[0]:
                        following[needed][setting] = (time_us + us, (*path, setting))
        reached = following
    ways: list[_Way] = []
    for states in reached:
        time_us, path = min(states.values(), key=lambda way: way[0], default=(math.inf, ()))
        ways.append((time_us, {(*family, size): setting for size, setting in zip(ordered, path, strict=False)}))
    return ways


def _combine(ways: Sequence[_Way], others: Sequence[_Way]) -> list[_Way]:
    """Return the least time with every number of rules in all, once a family of messages is added."""
    combined: list[_Way] = [(math.inf, {})] * (len(ways) + len(others) - 1)
    for (rules, (us, choices)), (added, (added_us, chosen)) in itertools.product(enumerate(ways), enumerate(others)):
        if us + added_us < combined[rules + added][0]:
            combined[rules + added] = (us + added_us, choices | chosen)
    return combined


def build_rules(choices: Mapping[Message, Setting]) -> tuple[Rule, ...]:
    """Return the rules that give each message its setting, as applied to its collective."""
    families: dict[_Family, dict[int, Setting]] = {}
    for message, setting in sorted(choices.items()):
        if message.collective.is_tunable:
            # NCCL's tuner sees bytes only, so two dtypes of one size are one case: the first one decides.
            family = message.collective, message.group_size, message.spans_nodes
            families.setdefault(family, {}).setdefault(message.size_bytes, setting)
    # The largest group is the whole job, which has one placement; a smaller one is tuned where it was measured.
    largest = max((group_size for _, group_size, _ in families), default=0)
    shared = {(group_size, True) for _, group_size, spans in families if not spans} & {f[1:] for f in families}
    rules: list[Rule] = []
    for (collective, group_size, spans), sizes in families.items():
        placed = group_size and (group_size < largest or (group_size, True) in shared)
        rules += _build_family_rules(collective, group_size, spans if placed else None, sizes)
    return tuple(rules)


def _build_family_rules(
    collective: Collective, group_size: int, spans_nodes: bool | None, sizes: Mapping[int, Setting]
) -> list[Rule]:
    ordered = sorted(sizes)
    rules: list[Rule] = []
    for before, size, after in zip([None, *ordered], ordered, [*ordered[1:], None], strict=False):
        setting = sizes[size]
        if not (setting.algorithm or setting.protocol or setting.channels):
            continue
        low, high = math.ceil(size / REACH), math.floor(size * REACH)
        if before is not None:
            middle = math.isqrt(before * size) + 1
            low = middle if size <= before * GAP else max(low, middle)
        if after is not None:
            middle = math.isqrt(size * after)
            high = middle if after <= size * GAP else min(high, middle)
        rule = Rule(
            collective=collective,
            min_bytes=min(low, size),
            max_bytes=max(high, size),
            group_size=group_size,
            spans_nodes=spans_nodes,
            algorithm=setting.algorithm,
            protocol=setting.protocol,
            channels=setting.channels,
        )
        last_bytes = rules[-1].max_bytes if rules else None
        if last_bytes is not None and last_bytes + 1 >= rule.min_bytes:
            joined = replace(rule, min_bytes=rules[-1].min_bytes)
            if joined == replace(rules[-1], max_bytes=rule.max_bytes):
                rule = joined
                rules.pop()
        rules.append(rule)
    return rules


def expected_us(
    policy: Policy, times: Times, workload: Workload, *, version: NcclVersion, by_variables: bool = False
) -> float:
    """Return the time per step that the measurements predict for a policy, µs; infinite where one is missing."""
    return sum(
        calls.calls_per_step * message_time_us(policy, times, calls, version=version, by_variables=by_variables)
        for calls in workload.messages
    )


def message_time_us(
    policy: Policy, times: Times, calls: MessageCalls, *, version: NcclVersion, by_variables: bool = False
) -> float:
    """Return the measured time of one call of a message under a policy, µs; infinite where it was not measured.

    All settings with the same effect on the message measured the same thing. Where there is none, one that left NCCL
    more or less to choose from stands in for it.

    Args:
        policy: delivered by a table, which touches what it names alone, or by variables.
    """
    message = calls.message
    wanted = policy.setting_by_variables(message, version=version) if by_variables else policy.setting_for(message)
    alike_us: list[float] = []
    confined_us: list[float] = []
    for setting, times_us in times.by_setting.items():
        applied = setting.applied_to(message.collective, version=version)
        if message in times_us and applied == wanted:
            alike_us.append(times_us[message])
        elif message in times_us and replace(applied, confined=wanted.confined) == wanted:
            confined_us.append(times_us[message])
    return statistics.median(alike_us or confined_us or [math.inf])
