"""The syntax of NCCL_ALGO and NCCL_PROTO in each NCCL version, and what a value leaves enabled.

Three dialects. Before 2.24 there is one plain list for all collectives. From 2.24 each collective may have its own
list, and one that is not named keeps what it had (parseList in src/graph/tuning.cc of 2.24.3). From 2.31 a variable
that is set first takes everything away from every collective (src/tuning/tuning.cc), so a first list without a name
must give back what the others need. `^` and LL128 are never written: both force LL128 where NCCL's own check forbids
it, with silent corruption as the possible result (NCCL issues 831, 740, 1261 and pull request 2053).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ncclt.core.algorithms import ALGORITHM_SINCE, LEGAL, Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import SettingError

PER_COLLECTIVE_SINCE = NcclVersion(2, 24)
"""First version with `allreduce:tree`."""

BASE_NEEDED_SINCE = NcclVersion(2, 31)
"""First version in which a variable disables everything for the collectives that it does not name."""

BASE_ALGORITHMS = (Algorithm.RING, Algorithm.TREE)
"""The base list: Ring exists for every collective; the form that vLLM pull request 58179 settled on."""

BASE_PROTOCOLS = (Protocol.LL, Protocol.SIMPLE)
"""The base list; LL128 must not be named."""

COLLECTIVE_WORDS: dict[Collective, str] = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE_SCATTER: "reducescatter",
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
}
"""NCCL's words for the tunable collectives, in its variables and in its tuner table alike."""

ALGORITHM_WORDS: dict[Algorithm, str] = {algorithm: algorithm.value.replace("_", "") for algorithm in Algorithm}
"""NCCL's words in NCCL_ALGO; the tuner table has them with underscores, as `Algorithm` does."""

PROTOCOL_WORDS: dict[Protocol, str] = {Protocol.LL: "LL", Protocol.SIMPLE: "Simple"}
"""NCCL's words in NCCL_PROTO, without LL128 on purpose."""


AlgoProto = tuple[Algorithm, Protocol]

_Choice = TypeVar("_Choice", Algorithm, Protocol)


def write_algorithms(chosen: Mapping[Collective, Algorithm], version: NcclVersion) -> str:
    """Return the value of NCCL_ALGO that forces one algorithm on each of the given collectives.

    Raises:
        SettingError: before 2.24, if the algorithms differ.
    """
    base = ",".join(ALGORITHM_WORDS[a] for a in BASE_ALGORITHMS)
    return _write({c: ALGORITHM_WORDS[a] for c, a in chosen.items()}, base=base, version=version)


def write_protocols(chosen: Mapping[Collective, Protocol], version: NcclVersion) -> str:
    """Return the value of NCCL_PROTO that forces one protocol on each of the given collectives.

    Raises:
        SettingError: LL128 is among them; before 2.24, if the protocols differ.
    """
    if Protocol.LL128 in chosen.values():
        raise SettingError(
            "LL128 is never written into NCCL_PROTO: it would bypass NCCL's safety check",
            hint="a tuner table can choose it (--format tuner-csv)",
        )
    base = ",".join(PROTOCOL_WORDS[p] for p in BASE_PROTOCOLS)
    return _write({c: PROTOCOL_WORDS[p] for c, p in chosen.items()}, base=base, version=version)


def _write(words: Mapping[Collective, str], *, base: str, version: NcclVersion) -> str:
    if version < PER_COLLECTIVE_SINCE:
        if len(set(words.values())) != 1:
            raise SettingError(f"NCCL {version} takes one choice for all collectives", hint="use --format tuner-csv")
        return next(iter(words.values()))
    entries = [f"{COLLECTIVE_WORDS[c]}:{words[c]}" for c in COLLECTIVE_WORDS if c in words]
    return ";".join([base, *entries] if version >= BASE_NEEDED_SINCE else entries)


def legal_algo_protos(collective: Collective, version: NcclVersion) -> frozenset[AlgoProto]:
    """Return every pair that this NCCL implements for a collective."""
    return frozenset(
        (algorithm, protocol)
        for algorithm, protocols in LEGAL[collective].items()
        if version >= ALGORITHM_SINCE[algorithm]
        for protocol in protocols
    )


def remaining_algo_protos(
    variables: Mapping[str, str], collective: Collective, version: NcclVersion
) -> frozenset[AlgoProto]:
    """Return the legal pairs that the NCCL_ALGO and NCCL_PROTO in `variables` leave enabled for a collective.

    Only reads what this module writes. Before 2.24 Ring stays enabled for everything but all_reduce, whatever is listed
    (ncclTopoTuneModel in src/graph/tuning.cc).

    Raises:
        SettingError: a word that this module never writes, `^` and LL128 among them.
    """
    algorithms = _enabled("NCCL_ALGO", variables, collective, {word: a for a, word in ALGORITHM_WORDS.items()}, version)
    protocols = _enabled("NCCL_PROTO", variables, collective, {word: p for p, word in PROTOCOL_WORDS.items()}, version)
    if algorithms is not None and ring_stays(collective, version):
        algorithms |= {Algorithm.RING}
    return frozenset(
        (algorithm, protocol)
        for algorithm, protocol in legal_algo_protos(collective, version)
        if (algorithms is None or algorithm in algorithms) and (protocols is None or protocol in protocols)
    )


def ring_stays(collective: Collective, version: NcclVersion) -> bool:
    """Return True if Ring remains enabled for any value of NCCL_ALGO, so that no other algorithm can be forced."""
    return version < PER_COLLECTIVE_SINCE and collective is not Collective.ALL_REDUCE


def _enabled(
    name: str, variables: Mapping[str, str], collective: Collective, words: Mapping[str, _Choice], version: NcclVersion
) -> frozenset[_Choice] | None:
    """Return the choices that one variable enables for a collective; None = it does not affect the collective."""
    if name not in variables:
        return None
    enabled: frozenset[_Choice] | None = frozenset() if version >= BASE_NEEDED_SINCE else None
    for entry in variables[name].split(";"):
        target, _, listed = entry.rpartition(":")
        if target in ("", COLLECTIVE_WORDS[collective]):
            unknown = [word for word in listed.split(",") if word not in words]
            if unknown:
                raise SettingError(f"{name} must never contain {unknown[0]!r}", hint="this is a bug in ncclt")
            enabled = frozenset(words[word] for word in listed.split(","))
    return enabled
