"""Rules about RCCL: which table it reads, what decides before the table, and how many channels it opens.

Not tried on an AMD GPU: what RCCL logs is known from its sources and from public logs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, observe, rule
from ncclt.health.doctor.variables import as_nccl_reads
from ncclt.nccl.log.evidence import Evidence, Variable

_TABLE_SINCE, _TABLE_ROCM = NcclVersion(2, 28, 3), (7, 13)
"""First RCCL with a tuner of its own; 2.28.3 is the version of ROCm 7.11 and 7.12 as well (its CHANGELOG)."""

_CHANNELS, _CHANNELS_BY_DEFAULT = 64, 48
"""Most channels between nodes (ROCm/rccl pull request 1200), and by default on gfx950 since ROCm 7.12."""

_WARP_SPEED_CHANNELS = 64
"""Most channels with WarpSpeed: each becomes four, and 256 are supported (ROCm/rocm-systems pull request 3577)."""

_PINNING = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")


def _find_plugin(facts: Facts) -> Variable | None:
    """Return NCCL_TUNER_PLUGIN if it names a plugin; None = the library's own tuner is asked."""
    plugin = facts.value("NCCL_TUNER_PLUGIN")
    return plugin if plugin and plugin.value.strip().lower() not in ("", "none") else None


def _reads_tables(facts: Facts) -> bool | None:
    """Return True if this RCCL reads a table itself; None = not known."""
    if "table" in facts.log.rccl:
        return True
    if facts.rccl is None or facts.rccl != _TABLE_SINCE:
        return None if facts.rccl is None else facts.rccl > _TABLE_SINCE
    rocm = facts.log.rccl.get("rocm")
    return None if rocm is None else tuple(map(int, rocm.value.split("."))) >= _TABLE_ROCM


def _version_line(facts: Facts) -> tuple[Evidence, ...]:
    return (facts.log.rccl["version"].evidence,) if "version" in facts.log.rccl else ()


@rule("RCC001")
def _other_table(facts: Facts) -> Iterator[Observation]:
    table, used = facts.value("NCCL_TUNER_CONFIG_FILE"), facts.log.rccl.get("table")
    if not facts.is_rccl or table is None or not table.value.strip():
        return
    if used and used.value != table.value:
        problem = f"NCCL_TUNER_CONFIG_FILE={table.value} is not the table in use: RCCL has loaded {used.value}"
        yield observe(problem, table.evidence, used.evidence)
    elif not _find_plugin(facts) and _reads_tables(facts) is False:
        problem = f"NCCL_TUNER_CONFIG_FILE={table.value} is read by nothing: RCCL {facts.rccl} has no tuner of its own"
        fix = "use RCCL of ROCm 7.13 or newer, or name its example tuner plugin in NCCL_TUNER_PLUGIN"
        yield observe(problem, table.evidence, *_version_line(facts), fix=fix)


@rule("RCC002")
def _too_many_channels(facts: Facts) -> Iterator[Observation]:
    nodes, ranks = facts.log.nodes, facts.log.ranks
    for variable in filter(None, map(facts.value, _PINNING)):
        if not facts.is_rccl or as_nccl_reads(variable.value)[0] <= _CHANNELS:
            continue
        setting = f"{variable.name}={variable.value}"
        if nodes > 1:
            problem = f"{setting}: RCCL opens at most {_CHANNELS} between {nodes} nodes"
        elif 0 < ranks < 8 and variable.name == "NCCL_MIN_NCHANNELS":
            problem = f"{setting} is ignored: with {ranks} GPUs RCCL takes 2 as the minimum instead"
        else:
            continue
        yield observe(problem, variable.evidence, *_version_line(facts))


@rule("RCC003")
def _default_channels(facts: Facts) -> Iterator[Observation]:
    if facts.rccl is None or facts.rccl < _TABLE_SINCE or facts.value("NCCL_MAX_NCHANNELS"):
        return
    for start in facts.log.starts:
        if (start.nodes or 0) > 1 and start.channels.get("coll") == _CHANNELS_BY_DEFAULT and start.channels_line:
            problem = f"a communicator over {start.nodes} nodes has {_CHANNELS_BY_DEFAULT} channels"
            yield observe(problem, start.channels_line, *_version_line(facts))
            return


@rule("RCC004")
def _msccl(facts: Facts) -> Iterator[Observation]:
    tuner, msccl = _find_plugin(facts) or facts.value("NCCL_TUNER_CONFIG_FILE"), facts.log.rccl.get("msccl")
    if msccl and tuner:
        yield observe(f"MSCCL is on beside {tuner.name}={tuner.value}", msccl.evidence, tuner.evidence)


@rule("RCC005")
def _plugin_instead(facts: Facts) -> Iterator[Observation]:
    plugin = _find_plugin(facts)
    if plugin and "table" not in facts.log.rccl and _reads_tables(facts):
        problem = f"NCCL_TUNER_PLUGIN={plugin.value} takes the place of RCCL's own table"
        yield observe(problem, plugin.evidence, *_version_line(facts))


@rule("RCC006")
def _warp_speed(facts: Facts) -> Iterator[Observation]:
    pinned = [variable for name in _PINNING if (variable := facts.value(name))]
    lines = [variable.evidence for variable in pinned]
    settings = " and ".join(f"{variable.name}={variable.value}" for variable in pinned)
    count, maximum = facts.value("RCCL_WARP_SPEED_CU_COUNT"), facts.value("NCCL_MAX_NCHANNELS")
    enabled, disabled = facts.log.rccl.get("warp_speed"), facts.log.rccl.get("no_warp_speed")
    if disabled:
        cause = f", with {settings}" if settings else ""
        yield observe(f"RCCL runs without WarpSpeed{cause}: {disabled.value}", disabled.evidence, *lines)
    elif enabled and maximum and as_nccl_reads(maximum.value)[0] > _WARP_SPEED_CHANNELS:
        problem = f"{maximum.name}={maximum.value} is more than the {_WARP_SPEED_CHANNELS} that WarpSpeed takes"
        yield observe(problem, maximum.evidence, enabled.evidence)
    if pinned and count:
        problem = f"RCCL_WARP_SPEED_CU_COUNT={count.value} is ignored because of {settings}"
        yield observe(problem, count.evidence, *lines)
