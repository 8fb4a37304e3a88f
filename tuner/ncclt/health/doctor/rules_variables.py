"""Rules about NCCL_* variables, and about the configuration files that set them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS, PER_COLLECTIVE_SINCE
from ncclt.core.algorithms import LEGAL, Algorithm
from ncclt.core.message import Collective, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, rule
from ncclt.health.doctor.variables import (
    LIMITS,
    PARAMETERS,
    REMOVED,
    REPLACED,
    as_nccl_reads,
    is_known,
    is_number,
    known_names,
    shown_value,
)
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.nccl.p2p_chunk import BETWEEN_NODES, CHUNKS_IN_NODE, DEFAULTS, STEPS, find_chunk, find_chunk_problem
from ncclt.nccl.variables import OLD_PYTORCH, VariableClass, classify

_ALGORITHMS = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}

_OFF_SWITCHES: dict[str, str] = {
    "NCCL_P2P_DISABLE": "GPUs reach each other through host memory",
    "NCCL_SHM_DISABLE": "GPUs of one node talk over the network",
    "NCCL_IB_DISABLE": "nodes talk over TCP, unless a network plugin serves them",
    "NCCL_PXN_DISABLE": "NICs of other GPUs cannot be used over NVLink",
    "NCCL_NVB_DISABLE": "GPUs without a direct NVLink go over PCIe",
    "NCCL_P2P_DIRECT_DISABLE": "data between GPUs of one process is copied once more",
}
"""Set to 1 they switch something off."""

_LEVELS: dict[str, str] = {
    "NCCL_P2P_LEVEL": "GPUs never reach each other directly",
    "NCCL_NET_GDR_LEVEL": "GPUDirect RDMA is off",
}
"""At LOC or 0 they switch something off."""

_DANGEROUS: dict[tuple[str, int], str] = {
    ("NCCL_PAT_ENABLE", 1): "is not supported with several GPUs per node",
    ("NCCL_IGNORE_DISABLED_P2P", 2): "uses peer-to-peer that the driver has disabled",
    ("NCCL_P2P_USE_CUDA_MEMCPY", 1): "may hang",
    ("NCCL_GRAPH_MIXING_SUPPORT", 0): "is a promise that only the application can make",
    ("NCCL_GRAPH_STREAM_ORDERING", 0): "is a promise that only the application can make",
    ("NCCL_LEGACY_CUDA_REGISTER", 1): "may hang",
    ("NCCL_NCHANNELS_PER_NET_PEER", 32): "has hung send_recv between 16 ranks (NVIDIA/nccl#1915)",
}
"""(variable, value) -> what it does (user guide; ncclt.nccl.parameters)."""


_OLDEST = NcclVersion(2, 18)
"""Assumed where the release is not known: what may still act is not called useless."""

_NAME = re.compile(r"NCCL_[A-Za-z0-9_]+")


def _named(facts: Facts) -> Iterator[Variable]:
    for variable in facts.variables():
        # Invalid names come from damaged lines of files, which have their own rule.
        if _NAME.fullmatch(variable.name):
            yield variable


def _setting(variable: Variable) -> str:
    return f"{variable.name}={shown_value(variable.name, variable.value)}"


def _seen(variable: Variable, what: str, fix: str = "") -> Observation:
    return Observation(what=f"{_setting(variable)} {what}", evidence=(variable.evidence,), fix=fix)


@rule(
    id="ENV001",
    severity=Severity.ERROR,
    title="LL128 is forced",
    why="LL128 needs stores of 128 bytes to arrive whole; where they do not, data is corrupted silently.",
    fix="unset NCCL_PROTO, or write Simple or `LL,Simple`; only a tuner table asks for LL128 safely",
    source="NCCL user guide, NCCL_PROTO; NVIDIA/nccl#740, #831, #1261, pull request 2053",
)
def _ll128(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_PROTO" and forces_ll128(variable.value):
            yield _seen(variable, "switches LL128 on where NCCL itself may have found it unsafe")


@rule(
    id="ENV002",
    severity=Severity.ERROR,
    title="received data is not flushed",
    why="Data is used before it has arrived: silent corruption.",
    fix="unset NCCL_GDR_FLUSH_DISABLE",
    source="transport/net.cc (flush after GPUDirect receives)",
)
def _unflushed(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_GDR_FLUSH_DISABLE" and as_nccl_reads(variable.value)[0]:
            yield _seen(variable, "lets GPUs read data that the NIC has not finished writing")


@rule(
    id="ENV003",
    severity=Severity.ERROR,
    title="a number is read otherwise than written",
    why="NCCL takes the digits at the beginning and drops the rest: 8M is 8, `true` is 0, 010 is 8.",
    fix="write a plain decimal number",
    source="misc/param.cc (strtoll with base 0)",
)
def _misread(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if not is_number(variable.name) or not variable.value.strip():
            continue
        number, whole = as_nccl_reads(variable.value)
        if not whole:
            fix = f"write a plain decimal number, for example {_plain(variable.value)}"
            yield _seen(variable, f"is read by NCCL as {number}", fix)


def _plain(text: str) -> str:
    """Return the number that `8M`, `"4"` or `true` stands for."""
    word = text.strip().strip("\"'").lower().removesuffix("ib").removesuffix("b")
    factors = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    if word[:-1].isdigit() and word[-1:] in factors:
        return str(int(word[:-1]) * factors[word[-1]])
    if word.isdigit():
        return str(int(word))
    return "1" if word in ("true", "yes", "on") else "0"


@rule(
    id="ENV007",
    severity=Severity.WARNING,
    title="a value is out of range",
    why="NCCL clamps or ignores it, without a warning in the default log.",
    fix="choose a value within the range",
    source="graph/tuning.cc (getNthreads), init.cc (envConfigOverride), transport/net_socket.cc",
)
def _outside(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        number, whole = as_nccl_reads(variable.value)
        low, high = LIMITS.get(variable.name, (number, number))
        if facts.is_rccl and "CHANNELS" in variable.name:
            continue  # RCC002 has the limits of RCCL
        if whole and not low <= number <= high:
            yield _seen(variable, f"is outside {low} to {high}, NCCL uses another value", f"choose {low} to {high}")
    threads, sockets = facts.value("NCCL_SOCKET_NTHREADS"), facts.value("NCCL_NSOCKS_PERTHREAD")
    if threads and sockets and as_nccl_reads(threads.value)[0] * as_nccl_reads(sockets.value)[0] > 64:
        yield _seen(threads, f"x {_setting(sockets)} is more than 64 sockets, NCCL uses fewer")


@rule(
    id="ENV004",
    severity=Severity.WARNING,
    title="algorithm or protocol is forced",
    why="One choice for all sizes and collectives is rarely right, and old choices outlive their reason.",
    fix="unset it and measure; `ncclt tune` finds what is better per size",
    source="NVIDIA/nccl#317, #1670; NCCL user guide, NCCL_ALGO",
)
def _forced_choice(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_ALGO":
            lost = collectives_without_algorithm(variable.value, facts.nccl) if facts.nccl else ()
            names = ", ".join(collective.value for collective in lost)
            failing = f", and every call of {names} fails with NCCL {facts.nccl}" if names else ""
            yield _seen(variable, f"takes the choice of the algorithm away from NCCL for every size{failing}")
        elif variable.name == "NCCL_PROTO" and not forces_ll128(variable.value):
            yield _seen(variable, "takes the choice of the protocol away from NCCL for every size")


@rule(
    id="ENV005",
    severity=Severity.WARNING,
    title="a dangerous variable is set",
    why="It may hang the job or break a promise of the application.",
    fix="unset it unless the application's authors ask for it",
    source="NCCL user guide, environment variables",
)
def _dangerous(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if not variable.value.strip():
            continue
        what = _DANGEROUS.get((variable.name, as_nccl_reads(variable.value)[0]))
        if what:
            yield _seen(variable, what)


@rule(
    id="ENV006",
    severity=Severity.WARNING,
    title="a transport is switched off",
    why="Such switches are set while looking for an error, or copied, and then forgotten; the fast path stays off. "
    "Most are of the site, which every trial of a study has, so no verdict names their cost.",
    fix="unset it, and compare the step times of both",
    source="NCCL user guide, debugging variables",
)
def _switched_off(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        name, effect = variable.name, ""
        if name in _OFF_SWITCHES and as_nccl_reads(variable.value)[0]:
            effect = _OFF_SWITCHES[name]
        elif name in _LEVELS and variable.value.strip().upper() in ("LOC", "0"):
            effect = _LEVELS[name]
        if effect:
            fix = (
                f"unset it if the job runs without; its cost: ncclt verify --against 'COMMAND' -- env -u {name} COMMAND"
            )
            yield _seen(variable, f"is set: {effect}", fix)


@rule(
    id="ENV008",
    severity=Severity.WARNING,
    title="a variable does nothing",
    why="A setting that is relied on has no effect.",
    fix="unset it",
    source="NCCL user guide, environment variables",
)
def _ignored(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        row = PARAMETERS.get(variable.name)
        since, instead = REMOVED.get(variable.name, ("", ""))
        if since and (facts.nccl or _OLDEST) >= NcclVersion.parse(since):
            yield _seen(variable, f"does nothing: NCCL {since} removed it", f"unset it: {instead}")
        elif variable.name in OLD_PYTORCH:
            yield _seen(variable, "is not read by NCCL", "unset it; PyTorch since 2.2 reads TORCH_NCCL_*")
        elif row and facts.nccl and not row.exists_in(facts.nccl):
            yield _seen(variable, f"does nothing: it came with NCCL {row.since}, this is {facts.nccl}")


@rule(
    id="ENV011",
    severity=Severity.INFO,
    title="a deprecated variable is set",
    why="It still acts, and together with its successor the more restrictive one wins.",
    fix="use its successor",
    source="NCCL user guide, NCCL_MAX_NCHANNELS",
)
def _deprecated(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name in REPLACED:
            since, instead = REPLACED[variable.name]
            yield _seen(variable, f"is deprecated since NCCL {since}", f"use {instead}, or unset it")


@rule(
    id="ENV010",
    severity=Severity.WARNING,
    title="an unknown variable is set",
    why="NCCL ignores names that it does not know: a misspelt variable has no effect.",
    fix="correct or unset it",
    source="NCCL user guide, environment variables; ncclt.health.doctor.variables",
)
def _unknown(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if not is_known(variable.name):
            close = difflib.get_close_matches(variable.name, known_names(), n=1, cutoff=0.85)
            meant = f"; is {close[0]} meant?" if close else ""
            yield _seen(variable, f"is not a variable that ncclt knows of{meant}")


@rule(
    id="ENV009",
    severity=Severity.WARNING,
    title="tuning is inherited",
    why="Settings found for another NCCL or cluster are a frequent cause of slow jobs; the default that a study "
    "compares with is without them.",
    fix="unset them, or tune and compare",
    source="NVIDIA-NeMo/Megatron-Bridge#1638; NCCL user guide, debugging variables",
)
def _inherited(facts: Facts) -> Iterator[Observation]:
    """Yield one observation of all inherited tuning that no other rule names."""
    named = set(_OFF_SWITCHES) | set(_LEVELS) | set(REPLACED) | set(REMOVED) | {"NCCL_ALGO", "NCCL_PROTO"}
    tuning = [v for v in _named(facts) if classify(v.name)[0] is VariableClass.TUNING]
    # A tuner plugin decides by calls, and has rules of its own.
    found = [v for v in tuning if v.name not in named and not v.name.startswith("NCCL_TUNER_")]
    if found:
        names = ", ".join(_setting(variable) for variable in found)
        yield Observation(what=f"inherited tuning: {names}", evidence=tuple(v.evidence for v in found))


@rule(
    id="ENV012",
    severity=Severity.INFO,
    title="NCCL logs much",
    why="Logging slows small messages and, on standard output, breaks the tables of nccl-tests.",
    fix="unset NCCL_DEBUG for measuring; ncclt does so itself",
    source="NVIDIA/nccl#1453",
)
def _logging(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_DEBUG" and variable.value.upper() in ("INFO", "TRACE"):
            yield _seen(variable, "writes a line for every call where COLL or ALL is asked for")


@rule(
    id="ENV013",
    severity=Severity.WARNING,
    title="the P2P chunk is not the one that is set",
    why="NCCL cuts the chunk of send_recv and all_to_all to an eighth of the buffer, and only its log says so.",
    fix="set NCCL_BUFFSIZE to 8 times the chunk, or unset the chunk",
    source="init.cc computeBuffSizes; NVIDIA-NeMo/Megatron-Bridge#3226 sets 2 MiB",
)
def _cut_chunk(facts: Facts) -> Iterator[Observation]:
    named = {variable.name.removeprefix("NCCL_"): variable for variable in _named(facts)}
    asked = {name: number for name in DEFAULTS if name in named and (number := as_nccl_reads(named[name].value)[0]) > 0}
    buffer, cut = format_bytes(asked.get("BUFFSIZE", DEFAULTS["BUFFSIZE"])), False
    for name in (BETWEEN_NODES, *CHUNKS_IN_NODE):
        if name in asked and (used := find_chunk(name, asked)) < asked[name]:
            cut = True
            yield _seen(
                named[name],
                f"is cut to {format_bytes(used)}: NCCL_BUFFSIZE is {buffer}",
                f"set NCCL_BUFFSIZE={STEPS * asked[name]}, or unset it",
            )
    if not cut and (problem := find_chunk_problem(asked, facts.log.p2p_chunks)):
        name = next(name for name in (BETWEEN_NODES, *CHUNKS_IN_NODE) if name in asked)
        yield Observation(what=problem, evidence=(named[name].evidence,), fix="compare the variables of all ranks")


VARIABLE_RULES = (
    _ll128,
    _unflushed,
    _misread,
    _forced_choice,
    _dangerous,
    _switched_off,
    _outside,
    _ignored,
    _inherited,
    _unknown,
    _deprecated,
    _logging,
    _cut_chunk,
)
"""About variables."""


def forces_ll128(text: str) -> bool:
    """Return True if a value of NCCL_PROTO switches LL128 on, bypassing NCCL's check that it is safe.

    Naming it does; so does every list of exclusions without it, because that switches all others on (parseList in
    graph/tuning.cc of 2.24 to 2.30).
    """
    for entry in text.lower().replace(" ", "").split(";"):
        listed = entry.rpartition(":")[2]
        words = listed.removeprefix("^").split(",")
        if listed and listed.startswith("^") != ("ll128" in words):
            return True
    return False


def collectives_without_algorithm(text: str, version: NcclVersion) -> tuple[Collective, ...]:
    """Return the collectives whose calls fail under a value of NCCL_ALGO.

    Before 2.24 Ring stays for all of them.
    """
    if version < PER_COLLECTIVE_SINCE:
        return ()
    enabled: dict[Collective, frozenset[Algorithm]] = {c: frozenset(Algorithm) for c in COLLECTIVE_WORDS}
    for entry in text.lower().replace(" ", "").replace("_", "").split(";"):
        target, _, listed = entry.rpartition(":")
        words = listed.removeprefix("^").split(",")
        named = frozenset(_ALGORITHMS[word] for word in words if word in _ALGORITHMS)
        chosen = frozenset(Algorithm) - named if listed.startswith("^") else named
        for collective, word in COLLECTIVE_WORDS.items():
            if listed and target in ("", word):
                enabled[collective] = chosen
    return tuple(collective for collective, chosen in enabled.items() if not chosen & set(LEGAL[collective]))


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
        for what, line in file.errors:
            yield Observation(what=what, evidence=(line,))


@rule(
    id="CNF002",
    severity=Severity.WARNING,
    title="a file contradicts the environment",
    why="The environment wins, then NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf; the loser is dead text.",
    fix="decide on one place and remove the other",
    source="misc/param.cc (setenv without overwriting)",
)
def _contradicts(facts: Facts) -> Iterator[Observation]:
    """Yield the lines that differ from the environment or an earlier line."""
    taken = {variable.name: (variable.value, variable.evidence) for variable in facts.environment}
    for file in facts.conf_files:
        for row in file.assignments:
            value, where = taken.setdefault(row.name, (row.value, row.evidence))
            if value != row.value:
                what = f"{file.source} sets {_setting(row)}, but {shown_value(row.name, value)} counts ({where.source})"
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
