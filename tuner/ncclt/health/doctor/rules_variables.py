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
from ncclt.health.doctor.finding import Observation, observe, rule
from ncclt.health.doctor.variables import (
    LIMITS,
    REMOVED,
    REPLACED,
    as_nccl_reads,
    is_known,
    is_number,
    shown_value,
)
from ncclt.nccl.log.evidence import Evidence, Variable
from ncclt.nccl.p2p_chunk import BETWEEN_NODES, CHUNKS_IN_NODE, DEFAULTS, STEPS, find_chunk, find_chunk_problem
from ncclt.nccl.parameters import BY_VARIABLE
from ncclt.nccl.variables import KNOWN, OLD_PYTORCH, VariableClass, classify

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

_OFF = ("LOC", "0")

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


def _named(facts: Facts, *names: str) -> Iterator[Variable]:
    """Yield the variables of some names; none = all whose name is valid: damaged lines have their own rule."""
    for variable in facts.variables():
        if variable.name in names if names else _NAME.fullmatch(variable.name):
            yield variable


def _show(variable: Variable) -> str:
    return f"{variable.name}={shown_value(variable.name, variable.value)}"


def _observe(variable: Variable, problem: str, fix: str = "") -> Observation:
    return observe(f"{_show(variable)} {problem}", variable.evidence, fix=fix)


@rule("ENV001")
def _ll128(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, "NCCL_PROTO"):
        if forces_ll128(variable.value):
            yield _observe(variable, "switches LL128 on where NCCL itself may have found it unsafe")


@rule("ENV002")
def _unflushed(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, "NCCL_GDR_FLUSH_DISABLE"):
        if as_nccl_reads(variable.value)[0]:
            yield _observe(variable, "lets GPUs read data that the NIC has not finished writing")


@rule("ENV003")
def _misread(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        number, is_plain = as_nccl_reads(variable.value)
        if is_number(variable.name) and variable.value.strip() and not is_plain:
            fix = f"write a plain decimal number, for example {_plain(variable.value)}"
            yield _observe(variable, f"is read by NCCL as {number}", fix)


def _plain(text: str) -> str:
    """Return the number that `8M`, `"4"` or `true` stands for."""
    word = text.strip().strip("\"'").lower().removesuffix("ib").removesuffix("b")
    factors = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    if word[:-1].isdigit() and word[-1:] in factors:
        return str(int(word[:-1]) * factors[word[-1]])
    if word.isdigit():
        return str(int(word))
    return "1" if word in ("true", "yes", "on") else "0"


@rule("ENV007")
def _outside(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, *LIMITS):
        number, is_plain = as_nccl_reads(variable.value)
        low, high = LIMITS[variable.name]
        if facts.is_rccl and "CHANNELS" in variable.name:
            continue  # RCC002 has the limits of RCCL
        if is_plain and not low <= number <= high:
            yield _observe(variable, f"is outside {low} to {high}, NCCL uses another value", f"choose {low} to {high}")
    threads, sockets = facts.value("NCCL_SOCKET_NTHREADS"), facts.value("NCCL_NSOCKS_PERTHREAD")
    if threads and sockets and as_nccl_reads(threads.value)[0] * as_nccl_reads(sockets.value)[0] > 64:
        yield _observe(threads, f"x {_show(sockets)} is more than 64 sockets, NCCL uses fewer")


@rule("ENV004")
def _forced_choice(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, "NCCL_ALGO"):
        failing = collectives_without_algorithm(variable.value, facts.nccl) if facts.nccl else ()
        names = ", ".join(collective.value for collective in failing)
        consequence = f", and every call of {names} fails with NCCL {facts.nccl}" if names else ""
        yield _observe(variable, f"takes the choice of the algorithm away from NCCL for every size{consequence}")
    for variable in _named(facts, "NCCL_PROTO"):
        if not forces_ll128(variable.value):
            yield _observe(variable, "takes the choice of the protocol away from NCCL for every size")


@rule("ENV005")
def _dangerous(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        problem = _DANGEROUS.get((variable.name, as_nccl_reads(variable.value)[0]))
        if problem and variable.value.strip():
            yield _observe(variable, problem)


@rule("ENV006")
def _switched_off(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, *_OFF_SWITCHES, *_LEVELS):
        name = variable.name
        is_off = as_nccl_reads(variable.value)[0] if name in _OFF_SWITCHES else variable.value.strip().upper() in _OFF
        if is_off:
            cost = f"ncclt verify --against 'COMMAND' -- env -u {name} COMMAND"
            effect = {**_OFF_SWITCHES, **_LEVELS}[name]
            yield _observe(variable, f"is set: {effect}", f"unset it if the job runs without; its cost: {cost}")


@rule("ENV008")
def _ignored(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        row = BY_VARIABLE.get(variable.name)
        since, successor = REMOVED.get(variable.name, ("", ""))
        if since and (facts.nccl or _OLDEST) >= NcclVersion.parse(since):
            yield _observe(variable, f"does nothing: NCCL {since} removed it", f"unset it: {successor}")
        elif variable.name in OLD_PYTORCH:
            yield _observe(variable, "is not read by NCCL", "unset it; PyTorch since 2.2 reads TORCH_NCCL_*")
        elif row and facts.nccl and not row.exists_in(facts.nccl):
            yield _observe(variable, f"does nothing: it came with NCCL {row.since}, this is {facts.nccl}")


@rule("ENV011")
def _deprecated(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, *REPLACED):
        since, successor = REPLACED[variable.name]
        yield _observe(variable, f"is deprecated since NCCL {since}", f"use {successor}, or unset it")


@rule("ENV010")
def _unknown(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if not is_known(variable.name):
            similar = difflib.get_close_matches(variable.name, sorted(KNOWN), n=1, cutoff=0.85)
            question = f"; is {similar[0]} meant?" if similar else ""
            yield _observe(variable, f"is not a variable that ncclt knows of{question}")


@rule("ENV009")
def _inherited(facts: Facts) -> Iterator[Observation]:
    """Yield one observation of all inherited tuning that no other rule names."""
    named = {*_OFF_SWITCHES, *_LEVELS, *REPLACED, *REMOVED, "NCCL_ALGO", "NCCL_PROTO"}
    tuning = [
        variable
        for variable in _named(facts)
        if classify(variable.name)[0] is VariableClass.TUNING
        and variable.name not in named
        # A tuner plugin decides by calls, and has rules of its own.
        and not variable.name.startswith("NCCL_TUNER_")
    ]
    if tuning:
        lines = (variable.evidence for variable in tuning)
        yield observe(f"inherited tuning: {', '.join(map(_show, tuning))}", *lines)


@rule("ENV012")
def _logging(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts, "NCCL_DEBUG"):
        if variable.value.upper() in ("INFO", "TRACE"):
            yield _observe(variable, "writes a line for every call where COLL or ALL is asked for")


@rule("ENV013")
def _cut_chunk(facts: Facts) -> Iterator[Observation]:
    variables = {variable.name.removeprefix("NCCL_"): variable for variable in _named(facts)}
    sizes = {name: as_nccl_reads(variables[name].value)[0] for name in DEFAULTS if name in variables}
    sizes = {name: size for name, size in sizes.items() if size > 0}
    chunks = [name for name in (BETWEEN_NODES, *CHUNKS_IN_NODE) if name in sizes]
    buffer = format_bytes(sizes.get("BUFFSIZE", DEFAULTS["BUFFSIZE"]))
    cut = {name: used for name in chunks if (used := find_chunk(name, sizes)) < sizes[name]}
    for name, used in cut.items():
        problem = f"is cut to {format_bytes(used)}: NCCL_BUFFSIZE is {buffer}"
        yield _observe(variables[name], problem, f"set NCCL_BUFFSIZE={STEPS * sizes[name]}, or unset it")
    if not cut and (problem := find_chunk_problem(sizes, facts.log.p2p_chunks)):
        yield observe(problem, variables[chunks[0]].evidence, fix="compare the variables of all ranks")


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


@rule("CNF001")
def _not_as_meant(facts: Facts) -> Iterator[Observation]:
    for file in facts.conf_files:
        yield from (observe(problem, line) for problem, line in file.errors)


@rule("CNF002")
def _contradicts(facts: Facts) -> Iterator[Observation]:
    """Yield the lines that differ from the environment or an earlier line."""
    in_effect = {variable.name: (variable.value, variable.evidence) for variable in facts.environment}
    for file in facts.conf_files:
        for row in file.assignments:
            value, line = in_effect.setdefault(row.name, (row.value, row.evidence))
            if value != row.value:
                problem = f"{file.source} sets {_show(row)}, but {shown_value(row.name, value)} counts ({line.source})"
                yield observe(problem, row.evidence, line)


@rule("CNF003")
def _against_recommendation(facts: Facts) -> Iterator[Observation]:
    recommended = dict(facts.recommended)
    for file in facts.conf_files:
        for row in file.assignments:
            wanted = recommended.get(row.name)
            sets = f"{file.source} sets {row.name}={row.value}"
            if wanted is not None and wanted != row.value:
                yield observe(f"{sets}, the recommendation {wanted}", row.evidence)
            elif row.name in ("NCCL_ALGO", "NCCL_PROTO") and "NCCL_TUNER_PLUGIN" in recommended:
                yield observe(f"{sets}, which overrules the recommended tuner table", row.evidence)


@rule("CNF004")
def _not_found(facts: Facts) -> Iterator[Observation]:
    yield from (observe(problem.text, problem) for problem in facts.file_problems)
    yield from (observe("NCCL could not open a file that a variable names", line) for line in facts.log.unopened)


@rule("CNF005")
def _in_effect(facts: Facts) -> Iterator[Observation]:
    for file in facts.conf_files:
        if file.assignments:
            line = Evidence(source=file.source, text=", ".join(dict.fromkeys(row.name for row in file.assignments)))
            yield observe(f"{file.source} sets {len(file.assignments)} variables for every job", line)
