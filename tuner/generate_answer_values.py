"""Write the allow-list of variables and values into ncclt/client/answer.py from the catalogue, or check it.

    python tuner/generate_answer_values.py            write it
    python tuner/generate_answer_values.py --check    exit 1 where it differs

answer.py goes into images without ncclt, so it cannot ask the catalogue itself.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ncclt.core.algo_proto_text import (
    ALGORITHM_WORDS,
    BASE_ALGORITHMS,
    BASE_NEEDED_SINCE,
    BASE_PROTOCOLS,
    COLLECTIVE_WORDS,
    PER_COLLECTIVE_SINCE,
    PROTOCOL_WORDS,
)
from ncclt.core.algorithms import LEGAL, Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.nccl.parameters import CATALOGUE, MOST_SOCKETS, SET_BY_RULES

ANSWER = Path(__file__).parent / "ncclt" / "client" / "answer.py"
FIRST = "# Written by tuner/generate_answer_values.py from the catalogue; `make lint` compares.\n# fmt: off\n"
LAST = "# fmt: on\n"


def block() -> str:
    """Return the data as code."""
    # What is free text has a grammar below, or is never set.
    rows = [row for row in CATALOGUE if (row.safe or row.name in SET_BY_RULES) and row.values is not None]
    lines = [
        "_NUMBERS = {",
        *_filled([f'"{row.variable}": {row.values},'.replace("range(0, ", "range(") for row in rows]),
        "}",
        "_LISTS = {",
    ]
    for name, words, legal in (("NCCL_ALGO", ALGORITHM_WORDS, _algorithms), ("NCCL_PROTO", PROTOCOL_WORDS, _protocols)):
        entries = []
        for collective, function in COLLECTIVE_WORDS.items():
            always, sometimes = (" ".join(words[choice] for choice in choices) for choices in legal(collective))
            entries.append(f'"{function}": ("{always}", "{sometimes}"),')
        lines += [f'    "{name}": {{', *_filled(entries, indent=8), "    },"]
    algorithms, protocols = (ALGORITHM_WORDS[a] for a in BASE_ALGORITHMS), (PROTOCOL_WORDS[p] for p in BASE_PROTOCOLS)
    lines += ["}", f'_BASE = {{"NCCL_ALGO": "{",".join(algorithms)}", "NCCL_PROTO": "{",".join(protocols)}"}}']
    since = f"{PER_COLLECTIVE_SINCE[:2]}, {BASE_NEEDED_SINCE[:2]}"
    lines.append(f"_NAMED_SINCE, _BASE_SINCE, _MOST_SOCKETS = {since}, {MOST_SOCKETS}")
    lines.append(f'_COLLECTIVE = "{"|".join(COLLECTIVE_WORDS)}"')
    lines.append(f'_ALGORITHM, _PROTOCOL = "{"|".join(Algorithm)}", "{"|".join(Protocol)}"')
    return "".join(f"{line}\n" for line in lines)


def _filled(entries: list[str], *, indent: int = 4) -> list[str]:
    """Return lines of entries, as many in each as fit."""
    lines = [" " * indent]
    for entry in entries:
        if len(lines[-1]) + len(entry) > 119:
            lines.append(" " * indent)
        lines[-1] += entry + " "
    return [line.rstrip() for line in lines]


def _algorithms(collective: Collective) -> tuple[list[Algorithm], list[Algorithm]]:
    """Return the algorithms that reach every call of a collective, and those that it has for some calls only.

    What NCCL has in every protocol it has for every size, dtype and operation too (core/algorithms.py).
    """
    always = [a for a, protocols in LEGAL[collective].items() if protocols == frozenset(Protocol)]
    return always, [a for a in LEGAL[collective] if a not in always]


def _protocols(_: Collective) -> tuple[list[Protocol], list[Protocol]]:
    """Return the protocols that may be named: each reaches every call, and LL128 is not among them."""
    return list(PROTOCOL_WORDS), []


def main(arguments: list[str] | None = None) -> int:
    """Write or check the block; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the allow-list into ncclt/client/answer.py.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where it differs")
    options = parser.parse_args(arguments)
    text = ANSWER.read_text(encoding="utf-8")
    before, after = text.index(FIRST) + len(FIRST), text.index(LAST)
    wanted = text[:before] + block() + text[after:]
    if options.check:
        if wanted != text:
            sys.stderr.write("differs: ncclt/client/answer.py; run tuner/generate_answer_values.py\n")
        return int(wanted != text)
    ANSWER.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
