"""The histogram of a profile as a picture."""

from xml.etree import ElementTree

import pytest

from ncclt.cli.profile_plot import check_plot, figure, write_plot
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError


def workload(*sizes, name="w"):
    messages = tuple(
        MessageCalls(message=Message(collective=Collective.ALL_REDUCE, dtype="uint8", size_bytes=s), calls_per_step=2.0)
        for s in sizes
    )
    return Workload(name=name, messages=messages, provenance=Provenance(source="x"))


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def test_bars_are_as_high_as_calls_and_bytes():
    above, below = figure(workload(1024, 1500, 4096)).axes

    assert [h for h in heights(above) if h] == [4.0, 2.0]
    assert [h for h in heights(below) if h] == [2 * (1024 + 1500) / (1 << 20), 2 * 4096 / (1 << 20)]


def test_a_hostile_name_is_text_in_the_svg(tmp_path):
    write_plot(workload(8, name="<b> & $\\frac{1}{0}$"), tmp_path / "plot.svg")

    text = "".join(ElementTree.parse(tmp_path / "plot.svg").getroot().itertext())
    assert "<b> & $\\frac{1}{0}$" in text
    assert "calls per step" in text


def test_one_workload_gives_one_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        write_plot(workload(8, 1 << 30), tmp_path / name)

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_name_of_the_file_decides(tmp_path):
    write_plot(workload(8), tmp_path / "plot.PNG")

    assert (tmp_path / "plot.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"plot\.pdf") as caught:
        check_plot(tmp_path / "plot.pdf")
    assert ".svg" in caught.value.hint
    with pytest.raises(UsageError, match="cannot be written"):
        write_plot(workload(8), tmp_path / "nowhere" / "plot.svg")
