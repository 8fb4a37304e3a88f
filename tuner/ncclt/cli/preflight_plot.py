"""`ncclt preflight --plot FILE.svg`: the heat maps as one self-contained picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ncclt.errors import UsageError
from ncclt.health.preflight.heat_map import HeatMap, heat_maps

if TYPE_CHECKING:
    from ncclt.core.preflight import Preflight

_CELL, _LEFT, _TOP, _GAP = 44, 110, 60, 30
"""Pixels: edge of a cell, room for names at the left and above, room between maps."""

TEXT = 'font-family="sans-serif" font-size="12"'


def check_plot(path: Path) -> None:
    """Raise unless a picture can be written to this path.

    Raises:
        UsageError: the name does not end in .svg, or there is no such folder.
    """
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--plot cannot write {path}", hint="end the name in .svg")
    if not path.parent.is_dir():
        raise UsageError(f"--plot cannot write {path}: there is no folder {path.parent}", hint="make it first")


def write_svg(picture: str, path: Path) -> None:
    """Write a picture.

    Raises:
        UsageError: see `check_plot`, or the file cannot be written.
    """
    check_plot(path)
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file for --plot"
        ) from error


def svg(preflight: Preflight) -> str:
    """Return the picture: the verdict, then the maps below each other."""
    maps = heat_maps(preflight)
    width = max([700, *(_LEFT + _CELL * len(one.names) + 20 for one in maps)])
    parts, y = [], 50
    for one in maps:
        parts.append(_map(one, y))
        y += _TOP + _CELL * len(one.names) + _GAP
    if not maps:
        parts.append(f'<text x="10" y="{y}" {TEXT}>no pairs were measured</text>')
        y += 20
    title = escape(f"{preflight.cluster}, {preflight.created}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}">\n'
        f'<rect width="{width}" height="{y}" fill="#ffffff"/>\n'
        f'<text x="10" y="20" {TEXT} font-weight="bold">{escape(_short(preflight.verdict))}</text>\n'
        f'<text x="10" y="38" {TEXT} fill="#555555">{title}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _short(text: str) -> str:
    return text if len(text) <= 110 else f"{text[:109]}…"


def _map(one: HeatMap, y: int) -> str:
    more = f" ({one.left_out} better ones are not shown)" if one.left_out else ""
    lines = [f'<text x="10" y="{y + 14}" {TEXT}>{escape(one.title + more)}</text>']
    for column, name in enumerate(one.names):
        x = _LEFT + column * _CELL + _CELL / 2
        lines.append(f'<text x="{x}" y="{y + _TOP - 6}" {TEXT} text-anchor="middle">{escape(name[-6:])}</text>')
    for row, first in enumerate(one.names):
        top = y + _TOP + row * _CELL
        label = escape(first[-14:])
        lines.append(f'<text x="{_LEFT - 6}" y="{top + 26}" {TEXT} text-anchor="end">{label}</text>')
        for column, second in enumerate(one.names):
            lines.append(_cell(one, first, second, x=_LEFT + column * _CELL, y=top))
    return "\n".join(lines)


def _cell(one: HeatMap, first: str, second: str, *, x: int, y: int) -> str:
    share = None if first == second else one.share(first, second)
    text = "" if share is None else "fails" if share == 0 else f"{share * 100:.0f}"
    said = f"{first}, {second}: {'not measured' if share is None else f'{share * 100:.0f} %'}"
    return (
        f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{_colour(share)}">'
        f"<title>{escape(said)}</title></rect>"
        f'<text x="{x + _CELL / 2}" y="{y + 26}" {TEXT} text-anchor="middle">{text}</text>'
    )


def _colour(share: float | None) -> str:
    """Return a colour from dark orange (0 %) to pale blue (as expected), a scale safe for colour-blind readers."""
    if share is None:
        return "#f2f2f2"
    good = min(1.0, max(0.0, (share - 0.4) / 0.6))
    low, high = (230, 120, 50), (198, 219, 239)
    return "#" + "".join(f"{round(a + (b - a) * good):02x}" for a, b in zip(low, high, strict=True))
