"""`ncclt profile show --plot FILE.svg`: calls and bytes of a step by power of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ncclt.cli.preflight_plot import TEXT
from ncclt.core.message import format_bytes
from ncclt.profile.views.histogram import histogram

if TYPE_CHECKING:
    from ncclt.core.workload import Workload

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 820, 180, 70, 50, 30
"""Pixels: of a chart, room for its scale at the left and above both, room between them."""

_MIB = 1 << 20


def svg(workload: Workload) -> str:
    """Return the histogram: calls above, bytes below, on one axis of sizes."""
    bins = histogram(workload)
    held = "a whole file" if workload.provenance.whole_file else "one training step"
    names = [format_bytes(2**one.exponent) for one in bins]
    below = _TOP + _HEIGHT + _GAP
    width, height = _LEFT + _WIDTH + 20, below + _HEIGHT + 60
    parts = [
        f'<text x="10" y="24" {TEXT} font-weight="bold">'
        f"{escape(f'{workload.name}: messages of {held} by size')}</text>",
        *_bars([one.calls for one in bins], names, f"calls per {workload.unit}", "#4477aa", _TOP),
        *_bars([one.bytes_per_step / _MIB for one in bins], names, f"MiB per {workload.unit}", "#228833", below),
    ]
    step, every = _WIDTH / len(bins), -(-len(bins) // 10)
    parts += [
        f'<text x="{_LEFT + (place + 0.5) * step:.1f}" y="{height - 40}" {TEXT} text-anchor="middle">{name}</text>'
        for place, name in enumerate(names)
        if place % every == 0
    ]
    parts.append(f'<text x="{_LEFT}" y="{height - 14}" {TEXT}>message size (powers of two)</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bars(values: Sequence[float], names: Sequence[str], title: str, colour: str, top: int) -> list[str]:
    """Draw a chart whose upper edge, the largest value, is at `top`; the tooltip of a bar shows its figures."""
    step, largest = _WIDTH / len(values), max(values)
    rows = [f'<text x="{_LEFT}" y="{top - 6}" {TEXT}>{title}</text>']
    for share in (0, 0.5, 1):
        y = top + _HEIGHT * (1 - share)
        rows.append(f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        rows.append(f'<text x="{_LEFT - 6}" y="{y + 4}" {TEXT} text-anchor="end">{largest * share:.4g}</text>')
    for place, (value, name) in enumerate(zip(values, names, strict=True)):
        tall = _HEIGHT * value / largest
        rows.append(
            f'<rect x="{_LEFT + (place + 0.1) * step:.1f}" y="{top + _HEIGHT - tall:.1f}" width="{0.8 * step:.1f}" '
            f'height="{tall:.1f}" fill="{colour}"><title>from {name}: {value:.6g} {title}</title></rect>'
        )
    return rows
