"""What a person sees of a proof: every block, what was decided after it, and whether it is still decided so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def print_evidence(document: dict[str, Any]) -> None:
    """Write a table per arm, its verdict, and whether it was found again."""
    from ncclt.cli.tables import print_table

    for arm in document["arms"]:
        print(f"\n{arm['arm']}: {arm['verdict']['decision']}: {arm['verdict']['reason']}")
        if not arm["blocks"] and arm["same"] is None:
            print("nothing was launched for it, so there is nothing to judge again")
            continue
        print_table(
            ("block", "default us", "policy us", "ln(default/policy)", "so far", "95 % interval", "decision"),
            [
                (
                    str(block["block"] + 1),
                    _joined(block["default_us"], "{:.1f}"),
                    _joined(block["policy_us"], "{:.1f}"),
                    _joined(block["log_ratios"], "{:+.4f}"),
                    f"{block['speedup']:.3f}x",
                    f"{_end(block['interval'][0])} to {_end(block['interval'][1])}",
                    block["decision"],
                )
                for block in arm["blocks"]
            ],
            numbers=("block", "so far"),
        )
        if arm["same"]:
            print("recomputed: same")
        else:
            print(f"recomputed: DIFFERENT: {arm['recomputed']['decision']}: {arm['recomputed']['reason']}")


def _joined(values: Sequence[float], form: str) -> str:
    return " ".join(form.format(value) for value in values)


def _end(value: float | None) -> str:
    return "unknown" if not value else f"{value:.3f}"
