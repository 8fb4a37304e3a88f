"""Rules about RCCL: which table it reads, what decides before the table, and how many channels it opens."""

from __future__ import annotations

from collections.abc import Iterator

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, rule
from ncclt.health.doctor.variables import as_nccl_reads
from ncclt.nccl.log.evidence import Evidence, Variable

_TABLE_SINCE, _TABLE_ROCM = NcclVersion(2, 28, 3), (7, 13)
"""First RCCL with a tuner of its own; 2.28.3 is the version of ROCm 7.11 and 7.12 as well (its CHANGELOG)."""

_CHANNELS, _CHANNELS_BY_DEFAULT = 64, 48
"""Most channels between nodes (ROCm/rccl pull request 1200), and by default on gfx950 since ROCm 7.12."""

_WARP_SPEED_CHANNELS = 64
"""Most channels with WarpSpeed: each becomes four, and 256 are supported (ROCm/rocm-systems pull request 3577)."""

_PINNING = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")


def _plugin(facts: Facts) -> Variable | None:
    """Return NCCL_TUNER_PLUGIN if it names a plugin; None = the library's own tuner is asked."""
    found = facts.value("NCCL_TUNER_PLUGIN")
    return found if found and found.value.strip().lower() not in ("", "none") else None


def _reads_tables(facts: Facts) -> bool | None:
    """Return True if this RCCL reads a table itself; None = not known."""
    if "table" in facts.log.rccl:
        return True
    if facts.rccl is None or facts.rccl != _TABLE_SINCE:
        return None if facts.rccl is None else facts.rccl > _TABLE_SINCE
    rocm = facts.log.rccl.get("rocm")
    return None if rocm is None else tuple(map(int, rocm.value.split("."))) >= _TABLE_ROCM


def _line(facts: Facts, *names: str) -> tuple[Evidence, ...]:
    return tuple(facts.log.rccl[name].evidence for name in names if name in facts.log.rccl)


@rule("RCC001")
def _other_table(facts: Facts) -> Iterator[Observation]:
    named, plugin, used = facts.value("NCCL_TUNER_CONFIG_FILE"), _plugin(facts), facts.log.rccl.get("table")
    if not facts.is_rccl or named is None or not named.value.strip():
        return
    if used and used.value != named.value:
        what = f"NCCL_TUNER_CONFIG_FILE={named.value} is not the table in use: RCCL has loaded {used.value}"
        yield Observation(what=what, evidence=(named.evidence, used.evidence))
    elif not plugin and _reads_tables(facts) is False:
        what = f"NCCL_TUNER_CONFIG_FILE={named.value} is read by nothing: RCCL {facts.rccl} has no tuner of its own"
        fix = "use RCCL of ROCm 7.13 or newer, or name its example tuner plugin in NCCL_TUNER_PLUGIN"
        yield Observation(what=what, evidence=(named.evidence, *_line(facts, "version")), fix=fix)


@rule("RCC002")
def _too_many_channels(facts: Facts) -> Iterator[Observation]:
    if not facts.is_rccl:
        return
    nodes = max((start.nodes or 0 for start in facts.log.starts), default=0)
    ranks = max((start.ranks or 0 for start in facts.log.starts), default=0)
    for variable in filter(None, map(facts.value, _PINNING)):
        if as_nccl_reads(variable.value)[0] <= _CHANNELS:
            continue
        if nodes > 1:
            what = f"{variable.name}={variable.value}: RCCL opens at most {_CHANNELS} between {nodes} nodes"
        elif 0 < ranks < 8 and variable.name == "NCCL_MIN_NCHANNELS":
            what = f"{variable.name}={variable.value} is ignored: with {ranks} GPUs RCCL takes 2 as the minimum instead"
        else:
            continue
        yield Observation(what=what, evidence=(variable.evidence, *_line(facts, "version")))


@rule("RCC003")
def _default_channels(facts: Facts) -> Iterator[Observation]:
    if facts.rccl is None or facts.rccl < _TABLE_SINCE or facts.value("NCCL_MAX_NCHANNELS"):
        return
    for start in facts.log.starts:
        if (start.nodes or 0) > 1 and start.channels.get("coll") == _CHANNELS_BY_DEFAULT and start.channels_line:
            what = f"a communicator over {start.nodes} nodes has {_CHANNELS_BY_DEFAULT} channels"
            yield Observation(what=what, evidence=(start.channels_line, *_line(facts, "version")))
            return


@rule("RCC004")
def _msccl(facts: Facts) -> Iterator[Observation]:
    tuner = _plugin(facts) or facts.value("NCCL_TUNER_CONFIG_FILE")
    lines = _line(facts, "msccl")
    if lines and tuner:
        what = f"MSCCL is on beside {tuner.name}={tuner.value}"
        yield Observation(what=what, evidence=(*lines, tuner.evidence))


@rule("RCC005")
def _plugin_instead(facts: Facts) -> Iterator[Observation]:
    plugin = _plugin(facts)
    if plugin and "table" not in facts.log.rccl and _reads_tables(facts):
        what = f"NCCL_TUNER_PLUGIN={plugin.value} takes the place of RCCL's own table"
        yield Observation(what=what, evidence=(plugin.evidence, *_line(facts, "version")))


@rule("RCC006")
def _warp_speed(facts: Facts) -> Iterator[Observation]:
    pinned = [variable for name in _PINNING if (variable := facts.value(name))]
    lines = tuple(variable.evidence for variable in pinned)
    named = " and ".join(f"{variable.name}={variable.value}" for variable in pinned)
    count = facts.value("RCCL_WARP_SPEED_CU_COUNT")
    used, lost = facts.log.rccl.get("warp_speed"), facts.log.rccl.get("no_warp_speed")
    if lost:
        what = f"RCCL runs without WarpSpeed{f', with {named}' if named else ''}: {lost.value}"
        yield Observation(what=what, evidence=(lost.evidence, *lines))
    elif used and (most := facts.value("NCCL_MAX_NCHANNELS")) and as_nccl_reads(most.value)[0] > _WARP_SPEED_CHANNELS:
        what = f"{most.name}={most.value} is more than the {_WARP_SPEED_CHANNELS} that WarpSpeed takes"
        yield Observation(what=what, evidence=(most.evidence, used.evidence))
    if pinned and count:
        what = f"RCCL_WARP_SPEED_CU_COUNT={count.value} is ignored because of {named}"
        yield Observation(what=what, evidence=(count.evidence, *lines))


RCCL_RULES = (_other_table, _too_many_channels, _default_channels, _msccl, _plugin_instead, _warp_speed)
"""About RCCL. Not tried on an AMD GPU: what RCCL logs is known from its sources and from public logs."""
