"""Tables, facts and numbers as a terminal and a file get them."""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ncclt.cli
from ncclt.cli.render import Column, format_number, print_facts, print_json, print_table

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_NAME = "resnet-of-somebody-with-a-long-name-2048"
_WORD = st.text("abcdefghij-_/", min_size=1, max_size=30)
_CELL = st.one_of(
    st.lists(_WORD, max_size=8).map(" ".join),
    st.none(),
    st.integers(-(10**9), 10**12),
    st.floats(-1e12, 1e12, allow_nan=False),
)
_COLUMN = st.builds(Column, st.lists(_WORD, min_size=1, max_size=3).map(" ".join), drop=st.integers(0, 3))


@pytest.fixture
def print_at(monkeypatch, capsys):
    """Return a function that calls another on a terminal of a width and returns the lines without styles."""

    def call(width, function, *arguments, **options):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        function(*arguments, **options)
        return _STYLE.sub("", capsys.readouterr().out).splitlines()

    return call


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_no_word_is_cut_and_only_columns_that_may_go_are_dropped(print_at, data):
    columns = data.draw(st.lists(_COLUMN, min_size=1, max_size=7))
    rows = data.draw(st.lists(st.tuples(*(_CELL for _ in columns)), min_size=1, max_size=4))
    for width in (60, 80, 120):
        lines = print_at(width, print_table, rows, columns)
        words = {word for line in lines for word in line.split()}
        needed = [place for place, column in enumerate(columns) if not column.drop]
        for row in rows:
            texts = [row[place] for place in needed if isinstance(row[place], str)]
            assert words >= {word for text in texts for word in text.split()}, width
            assert words >= {f"{row[place]:,}" for place in needed if isinstance(row[place], int)}
        longest = max(map(len, words), default=0)
        assert all(len(line.rstrip()) <= width or longest > width // 2 for line in lines), width
        assert not any("…" in word or re.search(r"\de[+-]\d", word) for word in words)


def test_the_highest_drop_goes_first_and_a_file_gets_every_column(print_at, capsys):
    columns = [Column("id"), Column("bytes per step", drop=2), Column("collective"), Column("share", drop=1)]
    row = ("0123456789abcdef" * 2, "1.25 GiB", "reduce_scatter", "12.5 %")
    print_table([row], columns)
    piped = capsys.readouterr().out
    assert len(piped.splitlines()) == 2
    assert "\x1b" not in piped
    assert all(cell in piped for cell in row)
    shown = [
        {column.title for column in columns if column.title in print_at(width, print_table, [row], columns)[0]}
        for width in (120, 65, 55)
    ]
    assert [sorted(titles) for titles in shown] == [
        ["bytes per step", "collective", "id", "share"],
        ["collective", "id", "share"],
        ["collective", "id"],
    ]


def test_a_table_that_fits_no_terminal_is_written_row_by_row(print_at):
    columns = [Column("id"), Column("verdict"), Column("default\nµs/call"), Column("what it is good for")]
    lines = print_at(40, print_table, [(_NAME, "keep-default", 1190.4, "training on many machines")], columns)
    assert lines[:2] == ["id:", f"  {_NAME}"]
    assert {"verdict: keep-default", "default µs/call: 1,190"} <= set(lines)


def test_numbers_end_in_one_place_and_texts_begin_in_one(print_at):
    rows = [(_NAME, 12345.6, "x"), ("x", 9.3, "y"), ("z", None, "w")]
    lines = print_at(80, print_table, rows, [Column("name"), Column("time per call, µs"), Column("note")])[1:]
    assert {line.index(number) + len(number) for line in lines for number in ("12,346", " 9.3", " -") if number in line}
    assert len({len(line.rstrip()) for line in lines}) == 1


def test_no_colour_where_none_is_wanted(print_at, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert print_at(80, print_table, [("x",)], [Column("name")]) == ["name", "x   "]


def test_facts_are_folded_below_their_sentence_and_commands_are_not(print_at):
    command = "ncclt env --cluster leonardo --model bert --nodes 2 --gpus-per-node 4 --nccl-version 2.22.3"
    sentence = "at most 1.2 ms per step, the exposed communication of the recording, of 3 parts"
    lines = print_at(60, print_facts, [("Savings", sentence), ("Use", command), ("", "")], commands=("Use",))
    assert f"Use:      {command}" in lines
    assert " ".join(line.strip() for line in lines[:-1]) == f"Savings:  {sentence}"
    assert all(line.startswith(" " * 10) for line in lines[1:-1])


def test_records_become_documents_at_any_depth(capsys):
    class Record:
        def to_document(self):
            return {"name": "x"}

    print_json({"schema": 1, "rows": [Record(), (Record(),)]})
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "rows": [{"name": "x"}, [{"name": "x"}]]}


@given(st.floats(-1e15, 1e15, allow_nan=False) | st.floats(-1e-3, 1e-3))
@example(6.359030340979613e-05)
@example(-3e-10)
def test_a_number_has_three_digits_or_is_an_integer(number):
    text = format_number(number)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(number, rel=0.006, abs=1e-8)
    digits = text.strip("-").replace(",", "").replace(".", "").lstrip("0")
    assert len(digits) <= 3 or re.fullmatch(r"-?\d{1,3}(,\d{3})+", text)


def test_larger_numbers_are_never_written_as_smaller_ones():
    numbers = [0.0004996, 0.99949, 0.9996, 9.994, 9.996, 999.4, 999.6, 1000.4, 99_999.6]
    values = [float(format_number(number).replace(",", "")) for number in numbers]
    assert all(low <= high for low, high in pairwise(values))


def test_no_table_of_a_command_may_drop_its_subject():
    """Verdict, collective, size and ids have no `drop`, and no command draws tables by itself."""
    for path in sorted(Path(ncclt.cli.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if getattr(call.func, "id", "") == "Column" and isinstance(call.args[0], ast.Constant):
                is_dropped = any(keyword.arg == "drop" for keyword in call.keywords)
                subjects = {"verdict", "decision", "result", "collective", "message", "size", "id", "state"}
                assert not (is_dropped and call.args[0].value in subjects), (path.name, call.lineno)
