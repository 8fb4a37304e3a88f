"""Rules about plugins: those that were requested, and what they change in the process."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, rule
from ncclt.health.doctor.variables import PARAMETERS, SITE
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.nccl.log.facts import Process

_KINDS = {"TUNER": "tuner", "NET": "net", "PROFILER": "profiler", "ENV": "env", "GIN": "GIN", "RMA": "RMA"}
"""First word of NCCL's lines about a plugin -> its name; NCCL_TUNER_PLUGIN requests it."""

_REQUESTED = re.compile(r"/Plugin: Plugin name set by env to (.*)")
_LOADED = re.compile(r"/Plugin: (?:Loaded|Using|Initialized|Successfully)(?! internal)", re.I)
_FAILED = re.compile(
    r"could not find|failed|cannot|can't|unable|not found|no plugin|undefined symbol|no such file|"
    r"plugin load(?:ing)? \(?\S*\)? ?returned|\.so\S*: ",
    re.I,
)
_OF_ANOTHER_PLUGIN = re.compile(r"ncclCollNet|ncclGin|ncclRma")
"""One library may bring several plugins; that it has no CollNet is normal."""


@rule(
    id="PLG001",
    severity=Severity.WARNING,
    title="a requested plugin is not loaded",
    why="NCCL runs on without it: a tuner table is not used, a network is replaced by sockets, nothing is profiled; "
    "only its log says so.",
    fix="give the path of a library that exists on every node and has the symbol that this NCCL asks for "
    "(`nm -D FILE | grep nccl`), or unset the variable",
    source="src/plugin/plugin_open.cc; uccl#172, aws-ofi-nccl#472",
)
def _not_loaded(facts: Facts) -> Iterator[Observation]:
    for word, kind in _KINDS.items():
        found: dict[str, tuple[Evidence, ...]] = {}
        counts: dict[str, int] = {}
        for process in facts.log.processes:
            if lost := _lost(process, word, facts.value(f"NCCL_{word}_PLUGIN")):
                what, lines = lost
                found.setdefault(what, lines)
                counts[what] = counts.get(what, 0) + 1
        for what, lines in found.items():
            more = f" ({counts[what]} processes)" if counts[what] > 1 else ""
            yield Observation(what=f"the {kind} plugin {what}{more}", evidence=lines)


def _lost(process: Process, word: str, anywhere: Variable | None) -> tuple[str, tuple[Evidence, ...]] | None:
    """Return the request of a plugin that a process did not load, with the reason and its lines."""
    lines = [said for said in process.plugins.values() if said.value.startswith(f"{word}/")]
    name = process.variables.get(f"NCCL_{word}_PLUGIN")
    requested = next((match[1] for said in lines if (match := _REQUESTED.search(said.value))), "")
    requested = requested or (name.value if name else anywhere.value if anywhere else "")
    if requested.strip().lower() in ("", "none"):
        return None
    if any(_LOADED.search(said.value) for said in lines):
        if word == "NET" and process.network and process.network.value in ("IB", "Socket"):
            used = process.network
            return f"{requested} is loaded and not used: NCCL uses its own {used.value}", (used.evidence,)
        return None
    reasons = [said for said in lines if _FAILED.search(said.value) and not _REQUESTED.search(said.value)]
    reasons = reasons or [said for said in lines if "using internal" in said.value.lower()]
    if word == "NET":
        reasons = [said for said in reasons if not _OF_ANOTHER_PLUGIN.search(said.value)]
    if not reasons:
        return None
    reason = reasons[-1].value.partition(": ")[2].rstrip(".")
    return f"{requested} was requested and is not loaded: {reason}", tuple(said.evidence for said in reasons)


@rule(
    id="PLG002",
    severity=Severity.WARNING,
    title="a plugin sets variables in the process",
    why="Nobody sees such settings in the job's environment. NCCL_PROTO and NCCL_ALGO overrule every tuner table.",
    fix="see the plugin's documentation; aws-ofi-nccl sets NCCL_PROTO=simple where the network does not keep the "
    "order that LL and LL128 need, so update it and libfabric, and do not overrule it",
    source="aws-ofi-nccl#889, #982",
)
def _set_inside(facts: Facts) -> Iterator[Observation]:
    found: dict[tuple[str, str], Evidence] = {}
    for process in facts.log.processes:
        for name, said in process.set_inside.items():
            found.setdefault((name, said.value), said.evidence)
    for (name, value), line in found.items():
        tuned = name in PARAMETERS and name not in SITE and not PARAMETERS[name].site
        yield Observation(
            what=f"{name}={value} is set inside the process{_consequence(name, value)}",
            evidence=(line,),
            severity=None if tuned else Severity.INFO,
        )


def _consequence(name: str, value: str) -> str:
    if name == "NCCL_ALGO":
        return ", which overrules the algorithms of every tuner table"
    if name != "NCCL_PROTO":
        return ""
    words = value.lower().removeprefix("^").split(",")
    left = [word for word in ("LL", "LL128", "Simple") if (word.lower() in words) == value.startswith("^")]
    return f", which takes {' and '.join(left)} from every tuner table" if left else ""


PLUGIN_RULES = (_not_loaded, _set_inside)
"""About plugins."""
