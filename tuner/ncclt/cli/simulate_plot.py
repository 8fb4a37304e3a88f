"""`ncclt simulate --plot FILE.svg`: bus bandwidth by size, a curve for each number of nodes and setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ncclt.cli.preflight_plot import TEXT
from ncclt.core.message import format_bytes

if TYPE_CHECKING:
    from ncclt.measure.simulated.sweep import SweepRow

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 900, 480, 70, 60, 230, 50
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#555555", "#000000")
"""The palette of Okabe and Ito, which is safe for colour-blind readers."""

_DASHES = ("", "6 3", "2 3")


def svg(rows: Sequence[SweepRow], title: str, calibrated: str) -> str:
    """Return the picture; extrapolated points are hollow."""
    groups: dict[tuple[int, str], list[SweepRow]] = {}
    for row in rows:
        groups.setdefault((row.nodes, row.setting.label), []).append(row)
    sizes = [math.log2(row.message.size_bytes) for row in rows]
    low, high = min(sizes), max(max(sizes), min(sizes) + 1)
    most = max(row.busbw_gbps for row in rows)

    def at(row: SweepRow) -> tuple[float, float]:
        across = (math.log2(row.message.size_bytes) - low) / (high - low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - row.busbw_gbps / most * (
            _HEIGHT - _TOP - _BOTTOM
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="10" y="20" {TEXT} font-weight="bold">{escape(title)}</text>',
        f'<text x="10" y="38" {TEXT} fill="#555555">{escape(calibrated)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" {TEXT} text-anchor="end">{share * most:.3g}</text>')
    for exponent in range(math.ceil(low), math.floor(high) + 1, max(1, math.ceil((high - low) / 8))):
        x = _LEFT + (exponent - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)
        label = format_bytes(2**exponent)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" {TEXT} text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}" {TEXT}>size; bus bandwidth in GB/s, SIMULATED</text>')
    for position, ((nodes, label), group) in enumerate(groups.items()):
        colour, dash = _COLOURS[position % len(_COLOURS)], _DASHES[position // len(_COLOURS) % len(_DASHES)]
        points = [at(row) for row in group]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#ffffff" stroke="{colour}"/>'
            for row, (x, y) in zip(group, points, strict=True)
            if row.extrapolated
        ]
        name = escape(f"{nodes} nodes, {label}")
        y_text = _TOP + 16 * position
        parts.append(f'<text x="{_WIDTH - _RIGHT + 14}" y="{y_text}" {TEXT} fill="{colour}">{name}</text>')
    return "\n".join(parts) + "\n</svg>\n"
