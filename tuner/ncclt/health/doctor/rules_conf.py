"""Rules about NCCL's configuration files."""

from __future__ import annotations

from collections.abc import Iterator

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, rule
from ncclt.nccl.log.evidence import Evidence


@rule(
    id="CNF001",
    severity=Severity.WARNING,
    title="a line is not read as meant",
    why="NCCL takes names and values literally, with blanks, quotes and comments, and never says so.",
    fix="write NAME=value without blanks, quotes or `export`, and comments on lines that begin with #",
    source="misc/param.cc (setEnvFile)",
)
def _not_as_meant(facts: Facts) -> Iterator[Observation]:
    for file in facts.conf_files:
        for flaw in file.flaws:
            yield Observation(what=flaw.what, evidence=(flaw.evidence,))


@rule(
    id="CNF002",
    severity=Severity.WARNING,
    title="a file contradicts the environment",
    why="The environment wins, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf; the loser is dead text.",
    fix="decide on one place and remove the other",
    source="misc/param.cc (setenv without overwriting)",
)
def _contradicts(facts: Facts) -> Iterator[Observation]:
    """Yield what a line sets differently from the environment or an earlier line."""
    taken = {variable.name: (variable.value, variable.evidence) for variable in facts.environment}
    for file in facts.conf_files:
        for row in file.assignments:
            value, where = taken.setdefault(row.name, (row.value, row.evidence))
            if value != row.value:
                what = f"{file.source} sets {row.name}={row.value}, but {value} counts ({where.source})"
                yield Observation(what=what, evidence=(row.evidence, where))


@rule(
    id="CNF003",
    severity=Severity.WARNING,
    title="a file contradicts the recommendation",
    why="Jobs that are not given the recommended variables run with the file's; variables overrule tuner tables.",
    fix="remove the line, or replace it by `ncclt env --format nccl-conf`",
    source="NCCL user guide, NCCL_CONF_FILE and NCCL_TUNER_PLUGIN; misc/param.cc",
)
def _against_recommendation(facts: Facts) -> Iterator[Observation]:
    recommended = dict(facts.recommended)
    for file in facts.conf_files:
        for row in file.assignments:
            wanted = recommended.get(row.name)
            if wanted is not None and wanted != row.value:
                yield Observation(
                    what=f"{file.source} sets {row.name}={row.value}, the recommendation {wanted}",
                    evidence=(row.evidence,),
                )
            elif row.name in ("NCCL_ALGO", "NCCL_PROTO") and "NCCL_TUNER_PLUGIN" in recommended:
                what = f"{file.source} sets {row.name}={row.value}, which overrules the recommended tuner table"
                yield Observation(what=what, evidence=(row.evidence,))


@rule(
    id="CNF004",
    severity=Severity.WARNING,
    title="a file that a variable names is not found",
    why="NCCL usually goes on without it, and only its log says so.",
    fix="give an absolute path that exists on every node, without ~, or unset the variable",
    source="NCCL user guide, environment variables; ncclt.nccl.parameters.FILES",
)
def _not_found(facts: Facts) -> Iterator[Observation]:
    for problem in facts.file_problems:
        yield Observation(what=problem.text, evidence=(problem,))
    for line in facts.log.unopened:
        yield Observation(what="NCCL could not open a file that a variable names", evidence=(line,))


@rule(
    id="CNF005",
    severity=Severity.INFO,
    title="a file sets variables",
    why="It acts on every job of this user or machine, and on the default arm of a study as well.",
    fix="keep in it what the site needs, and no tuning",
    source="NCCL user guide, environment variables",
)
def _in_effect(facts: Facts) -> Iterator[Observation]:
    for file in facts.conf_files:
        if file.assignments:
            names = ", ".join(dict.fromkeys(row.name for row in file.assignments))
            line = Evidence(source=file.source, text=names)
            yield Observation(
                what=f"{file.source} sets {len(file.assignments)} variables for every job", evidence=(line,)
            )


CONF_RULES = (
    _not_as_meant,
    _contradicts,
    _against_recommendation,
    _not_found,
    _in_effect,
)
"""About configuration files."""
