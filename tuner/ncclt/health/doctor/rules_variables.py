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
from ncclt.health.doctor.finding import Observation, rule
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


@rule("ENV001")
def _ll128(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_PROTO" and forces_ll128(variable.value):
            yield _seen(variable, "switches LL128 on where NCCL itself may have found it unsafe")


@rule("ENV002")
def _unflushed(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_GDR_FLUSH_DISABLE" and as_nccl_reads(variable.value)[0]:
            yield _seen(variable, "lets GPUs read data that the NIC has not finished writing")


@rule("ENV003")
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


@rule("ENV007")
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


@rule("ENV004")
def _forced_choice(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_ALGO":
            lost = collectives_without_algorithm(variable.value, facts.nccl) if facts.nccl else ()
            names = ", ".join(collective.value for collective in lost)
            failing = f", and every call of {names} fails with NCCL {facts.nccl}" if names else ""
            yield _seen(variable, f"takes the choice of the algorithm away from NCCL for every size{failing}")
        elif variable.name == "NCCL_PROTO" and not forces_ll128(variable.value):
            yield _seen(variable, "takes the choice of the protocol away from NCCL for every size")


@rule("ENV005")
def _dangerous(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if not variable.value.strip():
            continue
        what = _DANGEROUS.get((variable.name, as_nccl_reads(variable.value)[0]))
        if what:
            yield _seen(variable, what)


@rule("ENV006")
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


@rule("ENV008")
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


@rule("ENV011")
def _deprecated(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name in REPLACED:
            since, instead = REPLACED[variable.name]
            yield _seen(variable, f"is deprecated since NCCL {since}", f"use {instead}, or unset it")


@rule("ENV010")
def _unknown(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if not is_known(variable.name):
            close = difflib.get_close_matches(variable.name, known_names(), n=1, cutoff=0.85)
            meant = f"; is {close[0]} meant?" if close else ""
            yield _seen(variable, f"is not a variable that ncclt knows of{meant}")


@rule("ENV009")
def _inherited(facts: Facts) -> Iterator[Observation]:
    """Yield one observation of all inherited tuning that no other rule names."""
    named = set(_OFF_SWITCHES) | set(_LEVELS) | set(REPLACED) | set(REMOVED) | {"NCCL_ALGO", "NCCL_PROTO"}
    tuning = [v for v in _named(facts) if classify(v.name)[0] is VariableClass.TUNING]
    # A tuner plugin decides by calls, and has rules of its own.
    found = [v for v in tuning if v.name not in named and not v.name.startswith("NCCL_TUNER_")]
    if found:
        names = ", ".join(_setting(variable) for variable in found)
        yield Observation(what=f"inherited tuning: {names}", evidence=tuple(v.evidence for v in found))


@rule("ENV012")
def _logging(facts: Facts) -> Iterator[Observation]:
    for variable in _named(facts):
        if variable.name == "NCCL_DEBUG" and variable.value.upper() in ("INFO", "TRACE"):
            yield _seen(variable, "writes a line for every call where COLL or ALL is asked for")


@rule("ENV013")
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


@rule("CNF001")
def _not_as_meant(facts: Facts) -> Iterator[Observation]:
    for file in facts.conf_files:
        for what, line in file.errors:
            yield Observation(what=what, evidence=(line,))


@rule("CNF002")
def _contradicts(facts: Facts) -> Iterator[Observation]:
    """Yield the lines that differ from the environment or an earlier line."""
    taken = {variable.name: (variable.value, variable.evidence) for variable in facts.environment}
    for file in facts.conf_files:
        for row in file.assignments:
            value, where = taken.setdefault(row.name, (row.value, row.evidence))
            if value != row.value:
                what = f"{file.source} sets {_setting(row)}, but {shown_value(row.name, value)} counts ({where.source})"
                yield Observation(what=what, evidence=(row.evidence, where))


@rule("CNF003")
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


@rule("CNF004")
def _not_found(facts: Facts) -> Iterator[Observation]:
    for problem in facts.file_problems:
        yield Observation(what=problem.text, evidence=(problem,))
    for line in facts.log.unopened:
        yield Observation(what="NCCL could not open a file that a variable names", evidence=(line,))


@rule("CNF005")
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
