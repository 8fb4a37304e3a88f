"""Tables as a terminal and a file get them."""

import re

import pytest

from ncclt.cli.output import print_table

_NAME = "resnet-of-somebody-with-a-long-name-2048"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def on_terminal(monkeypatch, capsys):
    """Return a function that prints a table to a terminal of a width and gives its text with the styles."""

    def shown(columns, header, rows, numbers):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(header, rows, numbers=numbers)
        return capsys.readouterr().out

    return shown


HEADER = ("name", "bytes per step", "time per call, µs", "what it is good for")
ROWS = [(_NAME, "1.25 GiB", "12,345.6", "training of pictures on many machines"), ("x", "8 B", "9.3", "nothing")]


@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_terminal_folds_texts_at_blanks_and_cuts_names_in_the_middle(on_terminal, columns):
    lines = _STYLE.sub("", on_terminal(columns, HEADER, ROWS, HEADER[1:3])).splitlines()
    assert max(map(len, lines)) <= columns
    assert {word for line in lines for word in line.split()} >= {"training", "pictures", "machines", "12,345.6"}
    (cut,) = {line.split()[0] for line in lines if "12,345.6" in line}
    assert cut == _NAME or re.fullmatch(r"resnet-.*….*-?2048", cut)
    ends = {line.index(number) + len(number) for line in lines for number in ("12,345.6", " 9.3") if number in line}
    assert len(ends) == 1


def test_an_id_is_never_cut_and_the_longest_line_of_a_heading_counts(on_terminal):
    rows = [("0123456789ab", "a-long-name-of-a-model-of-somebody", "12.5")]
    header = ("id", "model", "default\nµs/call")
    assert "0123456789ab" in _STYLE.sub("", on_terminal(40, header, rows, header[2:]))
    lines = _STYLE.sub("", on_terminal(80, header, rows, header[2:])).splitlines()
    assert max(map(len, lines)) == 12 + 2 + 34 + 2 + len("default")


def test_a_table_that_cannot_be_narrower_loses_nothing(on_terminal):
    header = [f"column{at}" for at in range(12)]
    shown = _STYLE.sub("", on_terminal(40, header, [[f"{at}" * 9 for at in range(12)]], header))
    assert all(f"{at}" * 9 in shown for at in range(12))


def test_a_file_gets_whole_lines_without_styles(capsys):
    print_table(HEADER, ROWS, numbers=HEADER[1:3])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert len(printed.splitlines()) == 3
    assert _NAME in printed


def test_no_colour_where_none_is_wanted(on_terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*[34]\dm", on_terminal(80, HEADER, ROWS, HEADER[1:3]))
