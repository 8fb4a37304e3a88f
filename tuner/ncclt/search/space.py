"""The settings that a study may try, and the points by which Optuna knows them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from ncclt.client.answer import group_label
from ncclt.core.algorithms import Algorithm, Protocol, choices
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.policy import uniform_policy
from ncclt.core.setting import DEFAULT, MAX_CHANNELS, Setting, max_channels
from ncclt.core.workload import Workload
from ncclt.errors import InputError, UsageError
from ncclt.measure.testbed import Testbed
from ncclt.nccl.numerics import SameBits, compare_bits
from ncclt.nccl.p2p_chunk import P2P_CHANNELS, default_process_wide, effective, serves_all_peers
from ncclt.nccl.parameters import (
    CATALOGUE,
    COMPETES_WITH_COMPUTE,
    SET_BY_RULES,
    TAKES_SMS,
    Parameter,
    go_together,
    searchable,
)

CHANNEL_LADDER = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""Channel counts that are tried; a best one between two of them is rarely faster by more than the noise."""

AUTO = "auto"

MAX_POINTS = 20_000
"""Most points of a space; where all combinations of parameters would be more, fewer are set at once."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """A finite set of settings, spanned by a few ordered parameters.

    It has two kinds of coordinates. A sampler draws a point of `distributions`, where ladders are positions, so that
    neighbours are near. People read, and the stored study holds, the values themselves (`axes`, `values`).

    Attributes:
        distributions: what a sampler draws from.
        settings: what each point means: the sampled values in the order of `distributions` -> setting. Different
            points may mean the same setting.
    """

    distributions: Mapping[str, BaseDistribution]
    settings: Mapping[tuple[Any, ...], Setting]

    @cached_property
    def axes(self) -> Mapping[str, CategoricalDistribution]:
        """Return the values of algorithm, protocol, channels and each process-wide parameter; `auto` = NCCL's choice.

        Leaves out parameters that no setting forces.
        """
        axes: dict[str, dict[str | int, None]] = {"algorithm": {}, "protocol": {}, "channels": {}}
        for setting in self.distinct:
            for name, value in _values(setting).items():
                axes.setdefault(name, {})[value] = None
        # Numbers sorted, words in the order of the space.
        return {
            name: CategoricalDistribution(
                [*sorted(v for v in values if isinstance(v, int)), *(v for v in values if isinstance(v, str)), AUTO]
            )
            for name, values in axes.items()
            if values
        }

    @cached_property
    def distinct(self) -> tuple[Setting, ...]:
        """Return every setting once, in a fixed order."""
        return tuple(dict.fromkeys(self.settings.values()))

    @cached_property
    def _points(self) -> Mapping[Setting, tuple[Any, ...]]:
        return {setting: point for point, setting in self.settings.items()}

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """Return the setting of sampled values, or the nearest one.

        A step on a ladder has distance 1, another category the length of the longest ladder.
        """
        point = tuple(params[name] for name in self.distributions)
        if point in self.settings:
            return self.settings[point]
        ladders = [d.high - d.low if isinstance(d, IntDistribution) else None for d in self.distributions.values()]
        category = max((length for length in ladders if length is not None), default=1)

        def distance(other: tuple[Any, ...]) -> int:
            pairs = zip(ladders, point, other, strict=True)
            return sum(category * (a != b) if length is None else abs(int(a) - int(b)) for length, a, b in pairs)

        return self.settings[min(self.settings, key=lambda other: (distance(other), str(other)))]

    def params(self, setting: Setting) -> dict[str, Any] | None:
        """Return the last point that means a setting, or None where none does (the default of a recorded space)."""
        point = self._points.get(setting)
        return None if point is None else dict(zip(self.distributions, point, strict=True))

    def values(self, setting: Setting) -> dict[str, str | int]:
        """Return the value of a setting on each of the axes."""
        values = _values(setting)
        return {name: values.get(name, AUTO) for name in self.axes}

    def setting_with(self, values: Mapping[str, Any]) -> Setting | None:
        """Return the setting with these values, `auto` where one is not named; None if there is none in the space."""
        if set(values) - set(self.axes):
            return None
        wanted = {name: values.get(name, AUTO) for name in self.axes}
        return next((s for s in dict.fromkeys([*self.distinct, DEFAULT]) if self.values(s) == wanted), None)

    def anchors(self) -> tuple[Setting, ...]:
        """Return one setting per pair of algorithm and protocol to begin with: as little else forced as possible.

        One launch measures all messages, so after the anchors every pair is known on every message.
        """
        first: dict[tuple[Algorithm | None, Protocol | None], Setting] = {}
        # NCCL's own channel count comes first, then many channels before few.
        for setting in sorted(self.distinct, key=lambda s: (len(s.parameters), -(s.channels or MAX_CHANNELS + 1))):
            first.setdefault((setting.algorithm, setting.protocol), setting)
        return tuple(s for s in first.values() if not s.is_default)


def _values(setting: Setting) -> dict[str, str | int]:
    """Return the forced values of a setting by name."""
    forced: dict[str, str | int | None] = {
        "algorithm": setting.algorithm and setting.algorithm.value,
        "protocol": setting.protocol and setting.protocol.value,
        "channels": setting.channels,
        **dict(setting.parameters),
    }
    return {name: value for name, value in forced.items() if value is not None}


def cluster_space(
    collectives: Iterable[Collective],
    cluster: Cluster,
    *,
    parameters: Mapping[str, tuple[int, ...]],
    expressible: Callable[[Setting], bool] = lambda _setting: True,
    effect: Callable[[Mapping[str, int]], Hashable] = lambda values: tuple(sorted(values.items())),
    fits: Callable[[Mapping[str, int]], bool] = go_together,
    channels_alone: bool = False,
) -> SearchSpace:
    """Return the settings that NCCL would accept on a cluster for at least one of the collectives.

    Args:
        collectives: of the workload; untunable ones leave only the process-wide parameters.
        cluster: sized.
        parameters: process-wide parameters to search: name -> ladder of values; "not set" is always tried too.
        expressible: returns whether trials can force a pair; plain variables cannot force all.
        effect: returns what NCCL makes of process-wide parameters; of those with one effect, one setting is tried.
        fits: returns whether process-wide parameters can be combined there.
        channels_alone: try numbers of channels without a pair too, which a tuner table cannot say.
    """
    collectives = frozenset(collectives)
    algo_protos = [(a, p) for a, p in choices(collectives, cluster) if expressible(Setting(algorithm=a, protocol=p))]
    ladder = [c for c in CHANNEL_LADDER if c <= max_channels(cluster.version)]
    names = {_algo_proto_name(a, p): (a, p) for a, p in algo_protos}
    # "auto" is at the upper end: NCCL starts from all channels and takes fewer for small messages.
    channels: list[int | None] = [*ladder, None]
    distributions: dict[str, BaseDistribution] = {"pair": CategoricalDistribution([AUTO, *names])}
    counted = bool(names) or (channels_alone and any(c.is_tunable for c in collectives))
    if counted:
        distributions["channels"] = IntDistribution(0, len(channels) - 1)
    for name, values in sorted(parameters.items()):
        distributions[name] = IntDistribution(0, len(values))
    chosen = list(itertools.product([AUTO, *names], range(len(channels)) if counted else [0]))
    combinations = _combinations(parameters, effect, fits, limit=MAX_POINTS // len(chosen))
    settings: dict[tuple[Any, ...], Setting] = {}
    for (algo_proto, position), values in itertools.product(chosen, combinations):
        algorithm, protocol = names.get(algo_proto, (None, None))
        settings[algo_proto, *([position] if counted else []), *values] = Setting(
            algorithm=algorithm,
            protocol=protocol,
            channels=channels[position] if algorithm or (channels_alone and counted) else None,
            parameters=_set_parameters(parameters, values),
        )
    return SearchSpace(distributions=distributions, settings=settings)


def _combinations(
    parameters: Mapping[str, tuple[int, ...]],
    effect: Callable[[Mapping[str, int]], Hashable],
    fits: Callable[[Mapping[str, int]], bool],
    *,
    limit: int,
) -> list[tuple[int, ...]]:
    """Return positions on the ladders of all parameters, by name, 0 = not set; only what makes sense together.

    Of combinations with the same effect the one with the fewest parameters and the smallest buffer is kept. As many
    parameters are set at once as leave no more than `most` combinations, but always two of them.
    """
    combinations: dict[Hashable, tuple[int, ...]] = {}
    grid = itertools.product(*(range(len(parameters[name]) + 1) for name in sorted(parameters)))
    settings = {values: dict(_set_parameters(parameters, values)) for values in grid}
    for values in sorted(settings, key=lambda v: (len(settings[v]), settings[v].get("BUFFSIZE", 0), v)):
        if fits(settings[values]):
            combinations.setdefault(effect(settings[values]), values)
    ordered = sorted(combinations.values())
    for at_once in range(len(parameters), 2, -1):
        if len(ordered) <= limit:
            break
        ordered = [values for values in ordered if sum(position > 0 for position in values) < at_once]
    return ordered


def _set_parameters(parameters: Mapping[str, tuple[int, ...]], values: Iterable[int]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, parameters[name][position - 1])
        for name, position in zip(sorted(parameters), values, strict=True)
        if position > 0
    )


def recorded_space(recorded: Iterable[Setting]) -> SearchSpace:
    """Return exactly the recorded settings: their axes where they form a full grid, else one list of settings."""
    settings = [s for s in dict.fromkeys(recorded) if not s.is_default]
    by_point = {(_algo_proto_name(s.algorithm, s.protocol), s.channels or 0, _parameters_name(s)): s for s in settings}
    names = ("pair", "channels", "parameters")
    axes = [sorted(set(values)) for values in zip(*by_point, strict=True)]
    varying = [
        (name, values, at) for at, (name, values) in enumerate(zip(names, axes, strict=False)) if len(values) > 1
    ]
    if not varying or len(by_point) < math.prod(len(values) for values in axes):
        labels = {s.label: s for s in settings}
        return SearchSpace(
            distributions={"setting": CategoricalDistribution(list(labels))},
            settings={(label,): setting for label, setting in labels.items()},
        )
    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(0, len(values) - 1) if name == "channels" else CategoricalDistribution(values)
        for name, values, _ in varying
    }
    points = {
        tuple(values.index(point[at]) if name == "channels" else point[at] for name, values, at in varying): setting
        for point, setting in by_point.items()
    }
    return SearchSpace(distributions=distributions, settings=points)


def _algo_proto(setting: Setting) -> Setting:
    return replace(setting, channels=None, parameters=())


def _algo_proto_name(algorithm: Algorithm | None, protocol: Protocol | None) -> str:
    return f"{algorithm or AUTO}/{protocol or AUTO}"


def _parameters_name(setting: Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.parameters) or AUTO


def build_space(
    testbed: Testbed, workload: Workload, process_wide: tuple[str, ...], *, deterministic: bool = False
) -> SearchSpace:
    """Build the search space of a workload on a testbed.

    Args:
        testbed: where trials run; a replayed one offers what was recorded, whatever `process_wide` says.
        process_wide: names of the process-wide parameters to search, those of the study.
        deterministic: only settings that keep the order of additions of the NCCL default.

    Raises:
        UsageError: a parameter that may not be searched there, or no setting keeps the order of additions.
        InputError: nothing that was recorded could be forced.
    """
    space = _build_whole_space(testbed, workload, process_wide)
    if not deterministic:
        return space
    spared = {setting: _spare_reductions(setting, testbed, workload) for setting in space.distinct}
    points = {point: reduced for point, setting in space.settings.items() if (reduced := spared[setting]) is not None}
    if all(setting.is_default for setting in points.values()):
        movers = sorted(c for c in workload.collectives if c.is_tunable and not c.is_reduction)
        hints = ["leave out --deterministic"]
        if movers and not testbed.by_plugin:
            hints.append(f"force {', '.join(movers)} alone by the tuner plugin (`ncclt admin plugin build`)")
        if not testbed.by_options:
            hints.append("name parameters that only move data with --process-wide, such as IB_QPS_PER_CONNECTION")
        raise UsageError(
            "--deterministic: every candidate changes the order of additions; keeping the NCCL default",
            hint="; or ".join(hints),
        )
    return recorded_space(points.values()) if testbed.recorded is not None else replace(space, settings=points)


def _spare_reductions(setting: Setting, testbed: Testbed, workload: Workload) -> Setting | None:
    """Return the part of a setting that leaves reductions alone; None if it is empty, or may change their bits."""
    spared = replace(setting, spares_reductions=bool(setting.algorithm or setting.protocol))
    version, collectives = testbed.runner.cluster.version, workload.collectives
    policy = uniform_policy(spared, collectives, version=version)
    numerics = compare_bits(policy, version=version, by_variables=not testbed.by_plugin)
    is_forced = bool(policy.rules) == spared.spares_reductions and testbed.expressible(_algo_proto(spared))
    return spared if is_forced and numerics.same_bits is SameBits.YES else None


def _build_whole_space(testbed: Testbed, workload: Workload, process_wide: tuple[str, ...]) -> SearchSpace:
    if testbed.by_options and len(workload.groups) > 1:
        groups = ", ".join(group_label(*group) for group in sorted(workload.groups))
        raise UsageError(
            f"options are for one process group, and {workload.name} has several: {groups}",
            hint="keep one with `ncclt profile import --group`, or leave out --through options",
        )
    if testbed.recorded is not None:
        forcible = [s for s in testbed.recorded if s.is_default or not testbed.why_not(_algo_proto(s))]
        if testbed.by_options:
            forcible = [s for s in forcible if {name for name, _ in s.parameters} <= {COMPETES_WITH_COMPUTE}]
        if all(s.is_default for s in forcible):
            why = next((testbed.why_not(_algo_proto(s)) for s in testbed.recorded if not s.is_default), "")
            raise InputError(
                f"none of the recorded settings can be forced{f': {why}' if why else ''}",
                hint=f"leave out --through {'options' if testbed.by_options else 'variables'}",
            )
        return recorded_space(forcible)
    cluster = testbed.runner.cluster
    messages = tuple(calls.message for calls in workload.messages)
    default = () if testbed.by_options else default_process_wide(cluster, messages)
    if testbed.by_options and (others := set(process_wide) - {COMPETES_WITH_COMPUTE}):
        raise UsageError(
            f"options of a process group cannot carry NCCL_{min(others)}",
            hint=f"leave out --process-wide; only {COMPETES_WITH_COMPUTE} is an option too, with --beside gemm",
        )
    ladders = process_wide_ladders(process_wide, cluster, default=default, beside_compute=testbed.beside_compute)
    return cluster_space(
        workload.collectives,
        cluster,
        parameters=ladders,
        expressible=testbed.expressible,
        effect=lambda values: frozenset(effective(values, cluster, messages).items()),
        fits=lambda values: go_together(values) and serves_all_peers(values, cluster),
        channels_alone=testbed.by_options,
    )


def count_excluded(
    testbed: Testbed, workload: Workload, process_wide: tuple[str, ...], *, deterministic: bool = False
) -> dict[str, int]:
    """Count the settings that NCCL accepts, or that were recorded, but that are excluded from the search, by reason.

    Args:
        testbed, workload, process_wide, deterministic: as for `build_space`.
    """
    why_not = cache(testbed.why_not)

    def explain(setting: Setting) -> str:
        why = why_not(_algo_proto(setting))
        is_left_out = deterministic and not why and _spare_reductions(setting, testbed, workload) is None
        return "order of additions may change (--deterministic)" if is_left_out else why

    everything = build_space(replace(testbed, why_not=lambda _setting: ""), workload, process_wide).distinct
    counts = Counter(explain(setting) for setting in everything if not setting.is_default)
    return {why: number for why, number in counts.most_common() if why}


def describe_space(
    testbed: Testbed, workload: Workload, process_wide: tuple[str, ...], *, deterministic: bool = False
) -> str:
    """Return the size of the search space, with reasons for excluded settings and with ineffective parameters."""
    space = build_space(testbed, workload, process_wide, deterministic=deterministic)
    searched = len(space.distinct)
    missing = count_excluded(testbed, workload, process_wide, deterministic=deterministic)
    why = [f"{number} excluded: {reason}" for reason, number in missing.items()]
    if testbed.recorded is None:
        cluster, direct = testbed.runner.cluster, any(not collective.is_tunable for collective in workload.collectives)
        idle: dict[str, list[str]] = {}
        for name in process_wide:
            if name not in space.axes:
                unfit = (
                    f"no number alone reaches all {cluster.world_size} ranks in one round with NCCL {cluster.version}"
                )
                reason = unfit if direct and name in P2P_CHANNELS else "no effect on these messages"
                idle.setdefault(reason, []).append(name)
        why += [f"{', '.join(names)}: {reason}" for reason, names in idle.items()]
    size = f"{searched} of {searched + sum(missing.values())} settings" if missing else count_noun(searched, "setting")
    return f"{size} ({'; '.join(why)})" if why else size


def process_wide_ladders(
    names: tuple[str, ...], cluster: Cluster, *, default: tuple[str, ...] = (), beside_compute: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the values to try of each process-wide parameter, without its default.

    Args:
        cluster: sized.
        default: those that are searched unless others are asked for; for the hint.
        beside_compute: as for `searchable`.

    Raises:
        UsageError: a parameter that may not be searched with this NCCL; the hint names those that may.
    """
    version = cluster.version
    allowed = {p.name: p for p in searchable(version, beside_compute=beside_compute)}
    parameters = {p.name: p for p in CATALOGUE}
    for name in names:
        if name not in allowed:
            reason = (
                _why_not_searched(parameters[name], version) if name in parameters else "ncclt knows no such parameter"
            )
            close = get_close_matches(name, allowed)
            meant = f"did you mean {close[0]}? " if close else ""
            others = [n for n in allowed if n not in default]
            raise UsageError(
                f"{name} is not searched with NCCL {version}: {reason}",
                hint=f"{meant}default: {', '.join(default)}; also: {', '.join(others)}; `none` searches none",
            )
    return {name: allowed[name].ladder for name in names}


def _why_not_searched(row: Parameter, version: NcclVersion) -> str:
    if not row.exists_in(version):
        return f"it came with NCCL {row.since}"
    if row.name in TAKES_SMS:
        return "more channels than the NCCL default take SMs from compute; search them with --beside gemm"
    if row.name in SET_BY_RULES:
        return "the search chooses algorithm, protocol and channels itself"
    return f"ncclt never sets it{f' ({row.note})' if row.note else ''}"
