"""The proof of a study as pictures: its pairs of launches, and the interval as it closed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.prove.confidence import estimate_interval
from ncclt.prove.evidence import ArmLaunch
from ncclt.prove.verdict import INTERVAL_ERROR
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Level, Line
from ncclt_api.pages.wording import format_interval, format_speedup, format_time

MOST_PAIRS = 200
"""Pairs drawn; of more, the last ones."""

MOST_LOOKS = 24
"""Points of the interval: each takes a few hundredths of a second to compute at the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofCharts:
    """The pairs of default and policy, and the interval after each block."""

    pairs: Chart
    closing: Chart


def proof_charts(
    blocks: Sequence[tuple[ArmLaunch, ArmLaunch]], *, min_effect: float, per: str = "per step"
) -> ProofCharts | None:
    """Draw the proof of one arm; None before its first whole block.

    Args:
        blocks: pairs of default and arm with the times that the verdict counts (`ncclt.prove.proof.average_unchanged`).
        min_effect: smallest gain that counts, as a share.
        per: unit of the times (`Workload.per`).
    """
    pairs = [
        (default.time_us, other.time_us)
        for default, other in blocks
        if default.time_us is not None and other.time_us is not None
    ]
    if not pairs:
        return None
    return ProofCharts(pairs=_pairs_chart(pairs, per), closing=_closing_chart(pairs, min_effect))


def _pairs_chart(pairs: list[tuple[float, float]], per: str) -> Chart:
    first = max(0, len(pairs) - MOST_PAIRS)
    numbers = range(first + 1, len(pairs) + 1)
    shown = pairs[first:]
    faster = sum(1 for default, policy in pairs if policy < default)
    default_us, policy_us = [one[0] for one in shown], [one[1] for one in shown]
    ratios = [format_speedup(default / policy) for default, policy in shown]
    return Chart(
        id="pairs-chart",
        title="The proof, pair by pair",
        description=f"Launched in turns: the policy was faster in {faster} of {len(pairs)} pairs.",
        x=Axis(label="pair", unit="count", low=first + 0.5, high=len(pairs) + 0.5),
        y=Axis(label=f"time {per}", unit="us"),
        lines=[
            Line(label="default", tone="default", mark="ring", x=numbers, y=default_us, notes=ratios),
            Line(label="policy", tone="policy", mark="dot", x=numbers, y=policy_us, notes=ratios),
            Line(
                label="one pair",
                tone="quiet",
                mark="stem",
                x=numbers,
                y=[None] * len(shown),
                low=[min(pair) for pair in shown],
                high=[max(pair) for pair in shown],
            ),
        ],
        table=ChartTable(
            columns=("Pair", "Default", "Policy", "Ratio"),
            rows=[
                (str(number), format_time(default), format_time(policy), ratio)
                for number, default, policy, ratio in zip(numbers, default_us, policy_us, ratios, strict=True)
            ],
        ),
    )


def _closing_chart(pairs: list[tuple[float, float]], min_effect: float) -> Chart:
    gains = [math.log(default / policy) for default, policy in pairs]
    blocks = len(pairs) // 2
    looks = sorted({1 + round(place * (blocks - 1) / max(1, MOST_LOOKS - 1)) for place in range(MOST_LOOKS)})
    found = [estimate_interval(gains[: 2 * look], error=INTERVAL_ERROR) for look in looks]
    last = found[-1]
    ends = [last.low, last.high, *(one.estimate for one in found)]
    reach = max(0.03, *(1.6 * abs(end - 1) for end in ends if 0 < end < 3))
    bottom, top = max(0.0, 1 - reach), 1 + reach
    return Chart(
        id="closing-chart",
        title="The interval as it closed",
        description=f"95 % at any time of looking: after {blocks} block{'' if blocks == 1 else 's'} it is "
        f"{format_interval((last.low, last.high))}.",
        x=Axis(label="block", unit="count"),
        y=Axis(label="speed-up", unit="ratio", low=bottom, high=top),
        lines=[
            Line(
                label="speed-up and its 95 % interval",
                tone="policy",
                x=looks,
                y=[one.estimate for one in found],
                low=[max(one.low, bottom) for one in found],
                high=[min(one.high, top) for one in found],
            )
        ],
        levels=[
            Level(at=1.0, label="no change"),
            Level(at=1 + min_effect, label="least gain that counts", tone="warn"),
        ],
        table=ChartTable(
            columns=("Blocks", "Speed-up", "95 % interval"),
            rows=[
                (str(look), format_speedup(one.estimate), format_interval((one.low, one.high)))
                for look, one in zip(looks, found, strict=True)
            ],
        ),
    )
