"""The text output of `ncclt doctor`."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from ncclt.cli.output import print_table
from ncclt.health.doctor import RULES, Diagnosis, Finding
from ncclt.health.doctor.diagnosis import SCHEMA
from ncclt.health.doctor.matrix import TopologyMatrix

_WIDTH = 117
"""Most columns of a paragraph."""

_MOST_NICS = 16
"""Most columns of NICs shown; virtual functions make dozens."""


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Write the matrix, what is in use, and the findings, the worst first."""
    for matrix in diagnosis.facts.matrices:
        _print_matrix(matrix)
    _print_use(diagnosis)
    for finding in diagnosis.findings:
        _print_finding(finding)
    for line in diagnosis.facts.missing:
        _folded("missing: ", line)
    for parts, why, how in diagnosis.gaps:
        _folded("not examined: ", f"{parts}: {why}; {how}")
    print(f"verdict: {diagnosis.summary}")


def print_rules() -> None:
    """Write every rule with its reason."""
    for rule in RULES:
        print(f"{rule.id} {rule.severity.value}: {rule.title}")
        _indented("why", rule.why)
        _indented("fix", rule.fix)
        _indented("from", rule.source)


def rules_document() -> dict[str, Any]:
    """Return every rule as a JSON object."""
    return {"schema": SCHEMA, "rules": [rule.to_document() for rule in RULES]}


def _print_matrix(matrix: TopologyMatrix) -> None:
    nics = matrix.nics[:_MOST_NICS]
    names = [f"GPU{gpu}" for gpu in matrix.gpus]
    rows = []
    for gpu, affinity in zip(matrix.gpus, matrix.cpu_affinity, strict=True):
        others: tuple[int | str, ...] = (*matrix.gpus, *nics)
        words = [_word(matrix, gpu, other) for other in others]
        rows.append((f"GPU{gpu}", *words, affinity))
    left = len(matrix.nics) - len(nics)
    more = f"; {left} more NICs are not shown" if left else ""
    print(f"topology of {matrix.source}, hash {matrix.topology_hash()}{more}")
    print_table((" ", *names, *nics, "CPUs"), rows)
    print()


def _word(matrix: TopologyMatrix, gpu: int, other: int | str) -> str:
    link = matrix.link(gpu, other)
    return link.word if link else "?"


def _print_use(diagnosis: Diagnosis) -> None:
    document = diagnosis.facts.to_document()
    log = document["log"]
    rows = [("NCCL", document["nccl_version"] or "not known")]
    if log:
        transports = ", ".join(f"{kind} x{count}" for kind, count in log["transports"].items())
        channels = ", ".join(f"{count} {word}" for word, count in log["channels"].items())
        disabled = "; ".join(
            f"{name}: {', '.join(words)}" for name, words in log["disabled_algorithms"].items() if words
        )
        rows += [
            ("ranks", f"{log['ranks'] or '?'}, nodes: {log['nodes'] or '?'}, processes in the log: {log['processes']}"),
            ("transports", transports or "none in the log"),
            ("channels", channels or "none in the log"),
            ("network", ", ".join(log["networks"]) or "none in the log"),
            ("not used", disabled or "no table in the log"),
        ]
    for topology in diagnosis.facts.topologies:
        rows += [(f"GPU{gpu.index}", str(gpu)) for gpu in topology.gpus]
        rows += [(nic.name, str(nic)) for nic in topology.nics]
    print_table(("what", "is"), rows)
    print()


def _print_finding(finding: Finding) -> None:
    _folded(f"{finding.severity.value} {finding.id}: ", finding.what)
    for line in finding.evidence:
        _indented("seen", str(line))
    _indented("why", finding.why)
    _indented("fix", finding.fix)
    print()


def _indented(word: str, text: str) -> None:
    _folded(f"  {word:<5}", text)


def _folded(head: str, text: str) -> None:
    """Write a labelled paragraph, folded at words only: paths and commands stay whole."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    print(
        textwrap.fill(
            text,
            width=width,
            initial_indent=head,
            subsequent_indent=" " * 7,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
