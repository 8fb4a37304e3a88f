"""NCCL's table of latencies and bandwidths (NCCL_DEBUG_SUBSYS=TUNING): what it uses and what it has ruled out.

From 2.23 in blocks of three algorithms, with a header line each for algorithms and protocols; before that with one
header line `Tree/LL`, ... (graph/tuning.cc).
"""

from __future__ import annotations

import re

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective

_CELL = re.compile(r"\s*(-?[\d.]+)\s*/\s*(-?[\d.]+)\s*")
_COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_PROTOCOLS = ("LL", "LL128", "Simple")

_COLLECTIVE_OF = {word: collective for collective, word in COLLECTIVE_WORDS.items()}
_ALGORITHM_OF = {word: algorithm for algorithm, word in ALGORITHM_WORDS.items()}
_PROTOCOL_OF = {protocol.value: protocol for protocol in Protocol}

Costs = dict[tuple[Collective, Algorithm, Protocol], tuple[float, float]]
"""(collective, algorithm, protocol) -> latency in µs and bandwidth in GB/s."""

Cells = tuple[tuple[str, str, float, float], ...]
"""(algorithm, protocol, latency µs, bandwidth GB/s)."""


class CostTableReader:
    """Reads the rows of the table in order; one reader per rank."""

    def __init__(self) -> None:
        self._columns: tuple[tuple[str, str], ...] = ()

    def row(self, text: str) -> tuple[str, Cells] | None:
        """Take one message of the log; return collective and cells if it is a row with known columns."""
        head, *cells = [part.strip() for part in text.split("|")]
        if head == "Algorithm":
            self._columns = tuple((name, protocol) for name in cells if name for protocol in _PROTOCOLS)
        elif head.startswith("Latency/AlgBw"):
            pairs = [cell.split("/") for cell in cells if "/" in cell]
            self._columns = tuple((algorithm.strip(), protocol.strip()) for algorithm, protocol, *_ in pairs)
        elif head in _COLLECTIVES and self._columns:
            return self._cells(head, cells)
        return None

    def _cells(self, collective: str, cells: list[str]) -> tuple[str, Cells] | None:
        numbers = [_CELL.fullmatch(cell) for cell in cells if cell]
        if len(numbers) < len(self._columns):
            return None
        found = []
        for (algorithm, protocol), match in zip(self._columns, numbers, strict=False):
            latency, bandwidth = (_float(match[1]), _float(match[2])) if match else (None, None)
            if latency is None or bandwidth is None:
                return None
            found.append((algorithm, protocol, latency, bandwidth))
        return collective, tuple(found)


def parse_costs(collective: str, cells: Cells) -> Costs:
    """Return the cells of a row whose algorithm and protocol ncclt knows."""
    found: Costs = {}
    for algorithm, protocol, latency_us, gbps in cells:
        if algorithm.lower() in _ALGORITHM_OF and protocol.lower() in _PROTOCOL_OF:
            pair = _ALGORITHM_OF[algorithm.lower()], _PROTOCOL_OF[protocol.lower()]
            found[_COLLECTIVE_OF[collective.lower()], *pair] = (latency_us, gbps)
    return found


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
