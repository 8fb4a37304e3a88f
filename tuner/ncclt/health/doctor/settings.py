"""The NCCL variables of a job: what is set, who set it, and how many processes of NCCL have read it."""

from __future__ import annotations

import re
from collections import Counter
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
    counts: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], Evidence] = {}
    plugins: dict[tuple[str, str], str] = {}
    for process in facts.log.processes:
        logged = [*process.variables.items(), *process.set_inside.items()]
        for name, line in logged:
            lines.setdefault((name, line.value), line.evidence)
        counts.update({(name, line.value) for name, line in logged})
        for name, line in process.set_inside.items():
            writer = _WRITER.search(line.evidence.text)
            plugins[name, line.value] = f"plugin {writer[1] or writer[2]}" if writer else "plugin"
    sources: dict[tuple[str, str], tuple[str, Evidence]] = {}
    for pair, set_by, evidence in _sources(facts):
        sources.setdefault(pair, (set_by, evidence))
    unknown = f"unknown: {'not this shell, nor a file of this node' if facts.here else 'no file of --from'}"
    settings = []
    for name, value in sorted({*lines, *sources}):
        set_by, evidence = sources.get((name, value), (unknown, Evidence(source="", text="")))
        if facts.job and name in LOG_NAMES:
            continue  # ncclt itself has set these in a job that it ran
        settings.append(
            SetVariable(
                name=name,
                value=value,
                kind=classify(name)[0],
                set_by=plugins.get((name, value), set_by),
                processes=counts[name, value],
                evidence=lines.get((name, value), evidence),
            )
        )
    return tuple(settings)


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
    for rank, source in facts.job.program_sources() if facts.job else ():
        yield from ((pair, "launcher or script", source) for pair in rank.started_with)
        yield from ((pair, "program, in Python", source) for pair in rank.set_inside)
