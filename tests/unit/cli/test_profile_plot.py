"""The histogram of a profile as a picture."""

from xml.etree import ElementTree

import pytest

from ncclt.cli.preflight_plot import check_plot, write_svg
from ncclt.cli.profile_plot import svg
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError

SVG = "{http://www.w3.org/2000/svg}"


def workload(*sizes, name="w"):
    messages = tuple(
        MessageCalls(message=Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=s), calls_per_step=2.0)
        for s in sizes
    )
    return Workload(name=name, messages=messages, provenance=Provenance(source="x"))


def bars(picture, colour):
    return [bar for bar in ElementTree.fromstring(picture).iter(f"{SVG}rect") if bar.get("fill") == colour]


def heights(picture, colour):
    return [float(bar.get("height")) for bar in bars(picture, colour)]


def said(picture, colour):
    return ["".join(bar.itertext()) for bar in bars(picture, colour)]


def test_bars_are_as_high_as_calls_and_bytes():
    """The highest fills its chart; an empty power of two keeps its place."""
    picture = svg(workload(1024, 1500, 4096))

    assert heights(picture, "#4477aa") == [180.0, 0.0, 90.0]
    assert heights(picture, "#228833") == pytest.approx([180 * 2524 / 4096, 0, 180.0], abs=0.05)
    assert said(picture, "#4477aa")[0] == "from 1 KiB: 4 calls per step"


def test_a_hostile_name_is_text_in_the_svg():
    picture = svg(workload(8, name="<b> & $\\frac{1}{0}$"))

    text = "".join(ElementTree.fromstring(picture).itertext())
    assert "<b> & $\\frac{1}{0}$" in text
    assert "calls per step" in text


def test_one_workload_gives_one_file():
    assert svg(workload(8, 1 << 30)) == svg(workload(8, 1 << 30))


def test_a_single_size_and_a_huge_span_are_drawn():
    """One bar, and as many bars as there are powers of two, with a name at every few of them."""
    assert heights(svg(workload(8)), "#4477aa") == [180.0]
    assert len(heights(svg(workload(1, 1 << 40)), "#4477aa")) == 41


def test_only_svg_is_written(tmp_path):
    write_svg(svg(workload(8)), tmp_path / "plot.SVG")

    assert (tmp_path / "plot.SVG").read_text().startswith("<svg")
    for name in ("plot.png", "plot.pdf"):
        with pytest.raises(UsageError, match=name) as caught:
            check_plot(tmp_path / name)
        assert ".svg" in caught.value.hint
    with pytest.raises(UsageError, match="there is no folder"):
        write_svg(svg(workload(8)), tmp_path / "nowhere" / "plot.svg")
