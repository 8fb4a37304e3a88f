"""Drawings as trees of elements: the serialiser escapes, the stylesheet colours."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from ncclt_api.pages.scale import Scale

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def drawing(*, id: str, title: str, description: str, width: float, height: float, kind: str) -> Element:
    """Return an empty drawing with a name and a description for those who cannot see it."""
    root = ElementTree.Element("svg")
    root.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width:g} {height:g}",
        "role": "img",
        "class": kind,
        "aria-labelledby": f"{id}-title {id}-desc",
    }
    add(root, "title", id=f"{id}-title").text = title
    add(root, "desc", id=f"{id}-desc").text = description
    return root


def add(parent: Element, name: str, **attributes: str | float) -> Element:
    """Append an element; `class_` becomes class, other underscores hyphens."""
    named = {
        key.rstrip("_").replace("_", "-"): value if isinstance(value, str) else f"{value:g}"
        for key, value in attributes.items()
    }
    return ElementTree.SubElement(parent, name, named)


def text(parent: Element, words: str, *, x: float, y: float, kind: str = "", anchor: str = "start") -> Element:
    """Append words; `anchor` is start, middle or end."""
    element = add(parent, "text", x=x, y=y, class_=kind, text_anchor=anchor)
    element.text = words
    return element


def tooltip(parent: Element, words: str) -> None:
    """Add a tooltip to an element."""
    add(parent, "title").text = words


def horizontal_axis(parent: Element, scale: Scale, *, top: float, bottom: float, title: str, unit: float = 1) -> None:
    """Draw ticks, lines and the title of an x axis; labels are value / unit."""
    for value in scale.ticks():
        x = scale.position(value)
        add(parent, "line", x1=x, x2=x, y1=top, y2=bottom, class_="grid")
        text(parent, tick_label(value / unit), x=x, y=bottom + 18, kind="tick", anchor="middle")
    text(parent, title, x=(scale.start + scale.end) / 2, y=bottom + 38, kind="axis", anchor="middle")


def vertical_axis(parent: Element, scale: Scale, *, left: float, right: float, title: str, unit: float = 1) -> None:
    """Draw ticks, lines and the title of a y axis, with the title above it."""
    for value in scale.ticks():
        y = scale.position(value)
        add(parent, "line", x1=left, x2=right, y1=y, y2=y, class_="grid")
        text(parent, tick_label(value / unit), x=left - 8, y=y + 4, kind="tick", anchor="end")
    text(parent, title, x=left - 48, y=scale.end - 16, kind="axis")


def tick_label(value: float) -> str:
    """Write a tick without needless digits: 0.5, 20, 2000."""
    return f"{value:.10g}"


def markup(root: Element) -> Markup:
    """Return the drawing as HTML; everything variable in it was escaped by the serialiser."""
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - built from elements, never from text
