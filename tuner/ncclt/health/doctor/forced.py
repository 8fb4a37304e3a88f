"""What a text in NCCL_ALGO or NCCL_PROTO forces, whoever wrote it (parseList in graph/tuning.cc of 2.24 to 2.30)."""

from __future__ import annotations

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS, PER_COLLECTIVE_SINCE
from ncclt.core.algorithms import LEGAL, Algorithm
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion

_ALGORITHMS = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}


def forces_ll128(text: str) -> bool:
    """Tell whether a value of NCCL_PROTO switches LL128 on, bypassing NCCL's check that it is safe.

    Naming it does; so does every list of exclusions that leaves it in, for those switch all others on.
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
