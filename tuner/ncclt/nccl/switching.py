"""Transitions of persistent ranks from one setting to the next, in the cheapest way that NCCL really rereads.

The costs are those of NCCL itself (catalogue of parameters.py). Sources: NVIDIA/nccl graph/tuning.cc (NCCL_ALGO and
NCCL_PROTO are read for every communicator), src/misc/param.cc and src/param/param.cc (what is cached for the life of
the process, and NCCL_NO_CACHE), src/include/plugin/tuner (called at every call).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ncclt.core.algo_proto_text import BASE_NEEDED_SINCE, COLLECTIVE_WORDS
from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import Setting
from ncclt.errors import SettingError
from ncclt.nccl.compile import TUNER_API_SINCE, check_rule, variables_for_setting
from ncclt.nccl.parameters import BY_VARIABLE, CATALOGUE, Granularity

NO_CACHE = "NCCL_NO_CACHE"
"""Names the parameters that NCCL rereads. The list itself is read once, so it has to be set at the start."""

NO_CACHE_SINCE = NcclVersion(2, 29, 7)
"""From here NCCL has that variable (src/param/param.cc)."""

LL128_BY_TABLE_SINCE = NcclVersion(2, 22)
"""From here the tuner API shows which choices NCCL allows (v3), so that LL128 can be requested and is still checked."""

CHANNELS_ARE_A_LIMIT_SINCE = NcclVersion(2, 31)
"""From here NCCL treats a tuner's number of channels as an upper limit, no longer as the number."""

_READ_BY_NETWORK_PLUGINS = ("IB_", "SOCKET_", "NSOCKS_")
"""Parameters with these prefixes may be read by a site's network plugin instead of NCCL, which caches them for the life
of the process and ignores NCCL_NO_CACHE (Mellanox/nccl-rdma-sharp-plugins, src/ib_plugin.c)."""

_COLLNET = (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN)  # the plugin writes no channels for them


class SwitchCost(IntEnum):
    """Scope that has to be made again for a change to take effect; larger is more expensive.

    Attributes:
        CALL: nothing: the tuner plugin is called at every call.
        COMMUNICATOR: the process groups of all ranks.
        PROCESS: the ranks.
    """

    CALL = 0
    COMMUNICATOR = 1
    PROCESS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedState:
    """Rules and variables in effect in the ranks, or to be in effect.

    Attributes:
        rules: of the shared table; empty = the NCCL default.
        variables: (name with `NCCL_`, value) in addition to those of the environment, sorted.
    """

    rules: tuple[Rule, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Transition from one `ForcedState` to another.

    Attributes:
        cost: the most expensive thing that has to be made again; CALL also where nothing changes.
        rules: to be published, None = the table is unchanged.
        set_variables: (name, value) to be set, sorted.
        unset_variables: names to be restored to their values of the environment, sorted.
    """

    cost: SwitchCost
    rules: tuple[Rule, ...] | None = None
    set_variables: tuple[tuple[str, str], ...] = ()
    unset_variables: tuple[str, ...] = ()


def split_setting(
    setting: Setting, *, version: NcclVersion, collectives: Iterable[Collective], plugin: bool
) -> tuple[tuple[Rule, ...], Setting]:
    """Divide a setting between the shared table and variables.

    What the table cannot express exactly is left to variables: only an algorithm or only a protocol, channels where the
    two are not legal for every collective or where a tuner's number is only a limit, and from NCCL 2.31 all of a
    combination that some collective lacks, because the others are then confined (`Setting.applied_to`). A setting that
    spares reductions is a table alone: a variable for channels would act on them too.

    Args:
        plugin: whether the tuner plugin is loaded there.

    Raises:
        SettingError: LL128 could be forced only by variables, a setting that spares reductions likewise, or more
            channels than this NCCL has.

    Returns:
        Rules of the plugin's shared table, one for each collective that has the algorithm and protocol; and the rest,
        for variables.
    """
    spares = setting.spares_reductions
    tunable = [c for c in frozenset(collectives) if c.is_tunable and not (spares and c.is_reduction)]
    algorithm, protocol = setting.algorithm, setting.protocol
    everywhere = all(is_legal(c, algorithm, protocol, version=version) for c in tunable)
    confines = version >= BASE_NEEDED_SINCE and not everywhere and protocol is not Protocol.LL128 and not spares
    since = LL128_BY_TABLE_SINCE if protocol is Protocol.LL128 else TUNER_API_SINCE
    if not (plugin and algorithm and protocol and version >= since) or confines:
        if protocol is Protocol.LL128:
            raise SettingError(
                "Forcing LL128 with NCCL_PROTO bypasses NCCL's safety check: this setting was not launched"
            )
        if spares:
            raise SettingError("only a tuner table forces an algorithm and leaves reductions to NCCL")
        return (), setting
    exact = everywhere and version < CHANNELS_ARE_A_LIMIT_SINCE and algorithm not in _COLLNET
    channels = setting.channels if exact or spares else None
    rules = tuple(
        Rule(collective=collective, algorithm=algorithm, protocol=protocol, channels=channels)
        for collective in COLLECTIVE_WORDS
        if setting.reaches(collective, version=version)
    )
    for rule in rules:
        check_rule(rule, version)
    return rules, Setting(channels=None if exact or spares else setting.channels, parameters=setting.parameters)


def force_setting(
    setting: Setting,
    *,
    version: NcclVersion,
    collectives: Iterable[Collective],
    plugin: bool,
    variables: Callable[[Setting], Mapping[str, str]],
) -> ForcedState:
    """Return the state that forces a setting.

    Args:
        setting, version, collectives, plugin: as for `split_setting`.
        variables: those that force what the table cannot; may raise SettingError.

    Raises:
        SettingError: it cannot be forced.
    """
    rules, remainder = split_setting(setting, version=version, collectives=collectives, plugin=plugin)
    return ForcedState(rules=rules, variables=tuple(sorted(variables(remainder).items())))


def force_policy(policy: Policy, variables: Callable[[Setting], Mapping[str, str]]) -> ForcedState:
    """Return the rows of a policy, in the order in which they are delivered, and the variables beside them.

    The first row that fits a call counts, so those of a group come before those of any.
    """
    rules = tuple(sorted(policy.rules, key=lambda rule: rule.precedence))
    return ForcedState(rules=rules, variables=tuple(sorted(variables(Setting(parameters=policy.parameters)).items())))


def table_carries(policy: Policy, version: NcclVersion) -> bool:
    """Return True if a table delivers every rule of a policy, so that one launch measures it as a whole."""
    try:
        for rule in policy.rules:
            check_rule(rule, version)
    except SettingError:
        return False
    named = all(rule.algorithm and rule.protocol for rule in policy.rules)
    ll128 = any(rule.protocol is Protocol.LL128 for rule in policy.rules)
    return named and version >= (LL128_BY_TABLE_SINCE if ll128 else TUNER_API_SINCE)


def find_forcing_problem(
    setting: Setting, *, version: NcclVersion, collectives: Iterable[Collective], plugin: bool
) -> str:
    """Return the reason why a setting cannot be forced as a whole; empty = it can.

    Args:
        setting, version, collectives, plugin: as for `split_setting`.
    """
    workload = frozenset(collectives)
    try:
        _, remainder = split_setting(setting, version=version, collectives=workload, plugin=plugin)
        compiled = variables_for_setting(remainder, version=version, collectives=workload)
    except SettingError as error:
        if setting.protocol is not Protocol.LL128:
            return error.message
        old = version < LL128_BY_TABLE_SINCE
        since = f"; a tuner table can force it from NCCL {LL128_BY_TABLE_SINCE} on" if old else ""
        return f"forcing LL128 with NCCL_PROTO bypasses NCCL's safety check{since}"
    return "" if compiled.complete else compiled.reasons[0]


def list_reread_variables(version: NcclVersion) -> tuple[str, ...]:
    """Return the variables that NCCL rereads because NCCL_NO_CACHE names them; none in versions without it.

    Only what ncclt may set, because each listed parameter takes a lock wherever NCCL reads it; and nothing that a
    network plugin may read instead.
    """
    if version < NO_CACHE_SINCE:
        return ()
    return tuple(
        row.variable
        for row in CATALOGUE
        if row.safe
        and row.exists_in(version)
        and row.granularity is Granularity.REFRESHED
        and not row.name.startswith(_READ_BY_NETWORK_PLUGINS)
    )


def switch_cost(variable: str, version: NcclVersion) -> SwitchCost:
    """Return the cost of a variable to take effect; an unknown one needs new ranks."""
    row = BY_VARIABLE.get(variable)
    if row is None:
        return SwitchCost.PROCESS
    again = row.granularity is Granularity.COMMUNICATOR or variable in list_reread_variables(version)
    return SwitchCost.COMMUNICATOR if again else SwitchCost.PROCESS


def start_variables(wanted: ForcedState, version: NcclVersion) -> dict[str, str]:
    """Return the environment of starting ranks from which they can switch to `wanted`.

    What a communicator reads is not included: it is set later, so that its value of the environment is known.
    """
    listed = list_reread_variables(version)
    return dict(initial_state(wanted, version).variables) | ({NO_CACHE: ",".join(listed)} if listed else {})


def initial_state(wanted: ForcedState, version: NcclVersion) -> ForcedState:
    """Return the state of ranks that were started for `wanted`, before the first transition."""
    return ForcedState(
        variables=tuple((n, v) for n, v in wanted.variables if switch_cost(n, version) is SwitchCost.PROCESS)
    )


def plan_transition(now: ForcedState, wanted: ForcedState, version: NcclVersion) -> Transition:
    """Return the cheapest step from what is in effect to what is wanted."""
    before, after = dict(now.variables), dict(wanted.variables)
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return Transition(
        cost=max((switch_cost(name, version) for name in changed), default=SwitchCost.CALL),
        rules=wanted.rules if wanted.rules != now.rules else None,
        set_variables=tuple((name, after[name]) for name in changed if name in after),
        unset_variables=tuple(name for name in changed if name not in after),
    )
