"""How ranks that live on get from one setting to the next: by the cheapest way at which NCCL really reads it.

The costs are those of NCCL itself (catalogue of parameters.py). Sources: NVIDIA/nccl graph/tuning.cc (NCCL_ALGO and
NCCL_PROTO are read for every communicator), src/misc/param.cc and src/param/param.cc (what is kept for the life of the
process, and NCCL_NO_CACHE), src/include/plugin/tuner (asked at every call).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ncclt.core.algo_proto_text import BASE_NEEDED_SINCE, COLLECTIVE_WORDS
from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Rule
from ncclt.core.setting import Setting
from ncclt.errors import SettingError
from ncclt.nccl.compile import TUNER_API_SINCE, check_rule
from ncclt.nccl.parameters import CATALOGUE, Granularity

NO_CACHE = "NCCL_NO_CACHE"
"""Names the parameters that NCCL shall read again. The list itself is read once: it has to stand at the start."""

NO_CACHE_SINCE = NcclVersion(2, 29, 7)
"""From here NCCL knows that variable (src/param/param.cc)."""

LL128_BY_TABLE_SINCE = NcclVersion(2, 22)
"""From here the tuner API shows which choices NCCL allows (v3), so that LL128 can be asked for and stay checked."""

CHANNELS_ARE_A_LIMIT_SINCE = NcclVersion(2, 31)
"""From here NCCL takes a tuner's number of channels as an upper limit, and no longer as the number."""

_READ_BY_NETWORK_PLUGINS = ("IB_", "SOCKET_", "NSOCKS_")
"""Parameters that begin so may be read by a network plugin of the site in NCCL's place, which keeps what it has read
for the life of the process and knows no NCCL_NO_CACHE (Mellanox/nccl-rdma-sharp-plugins, src/ib_plugin.c)."""

_COLLNET = (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN)  # the plugin writes no channels for them


class SwitchCost(IntEnum):
    """What has to be made anew for a change to take effect; the larger, the dearer.

    Attributes:
        CALL: nothing: the tuner plugin is asked at every call.
        COMMUNICATOR: the process groups of all ranks.
        PROCESS: the ranks.
    """

    CALL = 0
    COMMUNICATOR = 1
    PROCESS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A setting by the two ways of saying it.

    Attributes:
        rules: what the plugin's shared table says, one rule for each collective that has the pair.
        by_variables: what is left to variables.
    """

    rules: tuple[Rule, ...]
    by_variables: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """What is in force in the ranks, or shall be.

    Attributes:
        rules: of the shared table; empty = NCCL's own choice.
        variables: (name with `NCCL_`, value) beside what the environment brought, sorted.
    """

    rules: tuple[Rule, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """What has to be done to get from one `Force` to another.

    Attributes:
        cost: the dearest thing that has to be made anew; CALL also where nothing changes.
        rules: to be published, None = the table stays as it is.
        set_variables: (name, value) to be set, sorted.
        unset_variables: names to be put back to what the environment brought, sorted.
    """

    cost: SwitchCost
    rules: tuple[Rule, ...] | None = None
    set_variables: tuple[tuple[str, str], ...] = ()
    unset_variables: tuple[str, ...] = ()


def split(setting: Setting, *, version: NcclVersion, collectives: Iterable[Collective], plugin: bool) -> Split:
    """Divide a setting between the shared table and variables.

    Whatever the table cannot say exactly is left to variables: half a pair, channels where the pair is not legal for
    every collective or where a tuner's number is a limit only, and from NCCL 2.31 all of a pair that some collective
    lacks, for `Setting.applied_to` says that the others are confined then.

    Args:
        setting: what shall be in force.
        version: NCCL of the ranks.
        collectives: that will be measured.
        plugin: whether the tuner plugin is loaded there.

    Raises:
        SettingError: LL128 could be forced by variables alone, or more channels than this NCCL has.
    """
    tunable = [c for c in frozenset(collectives) if c.is_tunable]
    algorithm, protocol = setting.algorithm, setting.protocol
    everywhere = all(is_legal(c, algorithm, protocol, version=version) for c in tunable)
    confines = version >= BASE_NEEDED_SINCE and not everywhere and protocol is not Protocol.LL128
    since = LL128_BY_TABLE_SINCE if protocol is Protocol.LL128 else TUNER_API_SINCE
    if not (plugin and algorithm and protocol and version >= since) or confines:
        if protocol is Protocol.LL128:
            raise SettingError("LL128 cannot be forced by variables safely, so this setting was not launched")
        return Split(rules=(), by_variables=setting)
    exact = everywhere and version < CHANNELS_ARE_A_LIMIT_SINCE and algorithm not in _COLLNET
    channels = setting.channels if exact else None
    rules = tuple(
        Rule(collective=collective, algorithm=algorithm, protocol=protocol, channels=channels)
        for collective in COLLECTIVE_WORDS
        if is_legal(collective, algorithm, protocol, version=version)
    )
    for rule in rules:
        check_rule(rule, version)
    rest = Setting(channels=None if exact else setting.channels, parameters=setting.parameters)
    return Split(rules=rules, by_variables=rest)


def read_again(version: NcclVersion) -> tuple[str, ...]:
    """Return the variables that NCCL reads again because NCCL_NO_CACHE names them; none before it knows that.

    Only what ncclt may set, for each listed parameter takes a lock wherever NCCL reads it; and nothing that somebody
    else may read in its place.
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
    """Return what has to be made anew for a variable to take effect; what is not known needs new ranks."""
    row = next((row for row in CATALOGUE if row.variable == variable), None)
    if row is None:
        return SwitchCost.PROCESS
    again = row.granularity is Granularity.COMMUNICATOR or variable in read_again(version)
    return SwitchCost.COMMUNICATOR if again else SwitchCost.PROCESS


def start_variables(wanted: Force, version: NcclVersion) -> dict[str, str]:
    """Return what has to stand in the environment when ranks start, so that they can come to `wanted`.

    What a communicator reads is not among it: it is set later, so that what the environment had brought is known.
    """
    fixed = {name: value for name, value in wanted.variables if switch_cost(name, version) is SwitchCost.PROCESS}
    listed = read_again(version)
    return fixed | ({NO_CACHE: ",".join(listed)} if listed else {})


def started(wanted: Force, version: NcclVersion) -> Force:
    """Return what is in force in ranks that were started for `wanted` and were told nothing yet."""
    return Force(variables=tuple((n, v) for n, v in wanted.variables if switch_cost(n, version) is SwitchCost.PROCESS))


def switch(now: Force, wanted: Force, version: NcclVersion) -> Switch:
    """Return the cheapest way from what is in force to what shall be."""
    before, after = dict(now.variables), dict(wanted.variables)
    changed = _changed(before, after)
    return Switch(
        cost=max((switch_cost(name, version) for name in changed), default=SwitchCost.CALL),
        rules=wanted.rules if wanted.rules != now.rules else None,
        set_variables=tuple((name, after[name]) for name in changed if name in after),
        unset_variables=tuple(name for name in changed if name not in after),
    )


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
