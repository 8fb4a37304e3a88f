"""The NCCL variables of a job: what is set, who set it, and how many processes of NCCL have read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclt.core.documents import Documented
from ncclt.health.doctor.facts import LOG_VARIABLES, Facts
from ncclt.nccl.log.evidence import Evidence
from ncclt.nccl.variables import VariableClass, classify

LOG_NAMES = frozenset(name for name in LOG_VARIABLES if name.startswith("NCCL_DEBUG"))
"""Variables that change nothing but the log."""

_WRITER = re.compile(
    r"NCCL [A-Z]+ (?:[\w./+-]+:\d+ )?(?=\S)(?:([\w/ -]{1,40}?)|([\w/-]{1,40})[ :].{0,80}?,)[ :]+[Ss]etting NCCL_"
)
"""Beginning of a plugin's line, `NET/OFI`, also before a sentence of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVariable(Documented):
    """One value of a variable.

    Attributes:
        name: of the variable.
        value: that was set.
        kind: its class.
        set_by: who set it, as far as it was seen.
        processes: how many processes say in NCCL's log that they use this value.
        evidence: the first line or source that shows it.
    """

    name: str
    value: str
    kind: VariableClass
    set_by: str
    processes: int
    evidence: Evidence


def find_settings(facts: Facts) -> tuple[SetVariable, ...]:
    """Return every value that a source sets or a process logs, by name.

    NCCL logs `set by environment` for the shell, configuration files and the program alike (src/misc/param.cc puts
    the files into the environment). So the log is compared with this shell, the files, the environment in which the
    recorded processes started, and what Python has set in them since. Other values have no known source.
    """
    counts: dict[tuple[str, str], int] = {}
    lines: dict[tuple[str, str], Evidence] = {}
    plugins: dict[tuple[str, str], str] = {}
    for process in facts.log.processes:
        logged = (*process.variables.items(), *process.set_inside.items())
        for name, said in logged:
            lines.setdefault((name, said.value), said.evidence)
        for pair in {(name, said.value) for name, said in logged}:
            counts[pair] = counts.get(pair, 0) + 1
        for name, said in process.set_inside.items():
            writer = _WRITER.search(said.evidence.text)
            plugins[name, said.value] = f"plugin {writer[1] or writer[2]}" if writer else "plugin"
    sources: dict[tuple[str, str], tuple[str, Evidence]] = {}
    for pair, set_by, evidence in _sources(facts):
        sources.setdefault(pair, (set_by, evidence))
    unseen = f"unknown: {'not this shell, nor a file of this node' if facts.here else 'no file of --from'}"
    found = []
    for pair in sorted({*lines, *sources}):
        set_by, evidence = sources.get(pair, (unseen, Evidence(source="", text="")))
        found.append(
            SetVariable(
                name=pair[0],
                value=pair[1],
                kind=classify(pair[0])[0],
                set_by=plugins.get(pair, set_by),
                processes=counts.get(pair, 0),
                evidence=lines.get(pair, evidence),
            )
        )
    # ncclt itself has set these in a job that it ran.
    return tuple(row for row in found if facts.job is None or row.name not in LOG_NAMES)


def _sources(facts: Facts) -> Iterator[tuple[tuple[str, str], str, Evidence]]:
    """Yield (name and value, who set it, where that is seen), in NCCL's order of precedence."""
    for variable in facts.environment:
        yield (variable.name, variable.value), "shell", variable.evidence
    for file in facts.conf_files:
        for row in file.assignments:
            if row.name.startswith(("NCCL_", "RCCL_")):
                yield (row.name, row.value), file.source, row.evidence
    for name, values in facts.log.assigned.items():
        for value, evidence in values.items():
            yield (name, value), f"traced command ({evidence.source}:{evidence.line})", evidence
    for rank in facts.job.programs if facts.job else ():
        seen = Evidence(source=f"{rank.host}, rank {'?' if rank.rank is None else rank.rank}", text="")
        for pair in rank.started_with:
            yield pair, "launcher or script", seen
        for pair in rank.set_inside:
            yield pair, "program, in Python", seen
