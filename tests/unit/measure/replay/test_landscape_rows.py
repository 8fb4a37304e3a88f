"""The strict table of a landscape: everything wrong in it is one line with file and row."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.setting import Setting
from ncclt.errors import InputError
from ncclt.measure.replay.landscape_rows import COLUMNS, LandscapeRow, read_rows, write_rows

LINE = "box,8,1,8,2.28.9,all_reduce,float32,1024,,,,,1,1,10,,0,a test"
DEFAULT = dict(zip(COLUMNS, LINE.split(","), strict=True))
FORCED = {**DEFAULT, "algo": "ring", "proto": "ll", "is_default": "0"}


def read(folder, *rows, columns=COLUMNS):
    lines = [",".join(columns), *(",".join(row[c] for c in columns) for row in rows)]
    (path := folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_rows(path)


SETTINGS = st.builds(
    Setting,
    algorithm=st.none() | st.sampled_from(Algorithm),
    protocol=st.none() | st.sampled_from(Protocol),
    channels=st.none() | st.integers(1, 64),
    parameters=st.sampled_from([(), (("BUFFSIZE", 1 << 20),), (("BUFFSIZE", 1 << 23), ("NTHREADS", 256))]),
)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(
    setting=SETTINGS,
    collective=st.sampled_from(Collective),
    system=TEXT,
    source=TEXT,
    size=st.integers(1, 1 << 40),
    time_us=st.floats(1e-3, 1e9),
    spread=st.sampled_from([0.0, 0.021, 0.1, 1.25]),
    in_place=st.sampled_from([None, False, True]),
)
def test_written_rows_are_read_back(
    tmp_path_factory, setting, collective, system, source, size, time_us, spread, in_place
):
    row = LandscapeRow(
        number=2,
        system=system,
        gpus=16,
        nodes=2,
        gpus_per_node=8,
        nccl_version="2.28.9",
        collective=collective,
        dtype="",
        size_bytes=size,
        setting=setting,
        repetition=3,
        time_us=time_us,
        spread=spread,
        in_place=in_place,
        source=source,
    )
    text = io.StringIO()
    write_rows([row], text)
    path = tmp_path_factory.mktemp("rows") / "t.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    assert read_rows(path) == (row,)


WRONG_CELLS = [
    ({"time_us": "nan"}, "time_us is 'nan', which is not a number above 0"),
    ({"time_us": "1_0"}, "time_us is '1_0'"),
    ({"time_us": "१"}, "time_us is '१'"),
    ({"time_us": "1e308"}, "time_us is '1e308', which is not a number above 0 and up to 1e+12"),
    ({"time_us": "1e-320"}, "time_us is '1e-320'"),
    ({"spread_percent": "1e9"}, "spread_percent is '1e9'"),
    ({"size_bytes": "9" * 18}, "above 2^53"),
    ({"parameters": "BUFSIZE=1"}, "parameters: ncclt knows no NCCL parameter 'BUFSIZE'"),
    ({"parameters": "NCCL_BUFFSIZE=1"}, "parameters is 'NCCL_BUFFSIZE=1'"),
    ({"time_us": "fast"}, "time_us is 'fast'"),
    ({"spread_percent": "-1"}, "spread_percent is '-1'"),
    ({"size_bytes": "1K"}, "size_bytes is '1K', which is not a whole number above 0"),
    ({"repetition": "0"}, "repetition is '0'"),
    ({"gpus": "7"}, "7 gpus are not 1 nodes x 8"),
    ({"nccl_version": ""}, "nccl_version"),
    ({"system": ""}, "system is blank"),
    ({"source": ""}, "source is blank"),
    ({"collective": "gossip"}, "unknown collective 'gossip'"),
    ({"algo": "Butterfly"}, "unknown algo 'Butterfly'"),
    ({"algo": "Ring,Tree"}, "more fields than columns"),
    ({"proto": "ll256"}, "unknown proto 'll256'"),
    ({"nchannels": "900"}, "nchannels: channels must be 1 to 64, not 900"),
    ({"parameters": "BUFFSIZE"}, "parameters is 'BUFFSIZE'"),
    ({"parameters": "BUFFSIZE=1 BUFFSIZE=2"}, "parameters is"),
    ({"is_default": "1"}, "is_default is 1, and the row forces ring/ll"),
    ({"algo": "", "proto": ""}, "is_default is 0, and the row forces default"),
    ({"is_default": "yes"}, "is_default is 'yes', neither 0 nor 1"),
    ({"in_place": "2"}, "in_place is '2', neither 0 nor 1"),
]


def test_wrong_cells_are_named_with_file_and_line(tmp_path, subtests):
    for cells, words in WRONG_CELLS:
        with subtests.test(cells=cells):
            with pytest.raises(InputError) as caught:
                read(tmp_path, DEFAULT, FORCED | cells)
            assert caught.value.message.startswith("t.csv, line 3: ")
            assert words in caught.value.message
            assert "\n" not in caught.value.message
            assert caught.value.hint


MIXED = [
    {"system": "other"},
    {"gpus": "16", "nodes": "2"},
    {"gpus": "4", "gpus_per_node": "4"},
    {"nccl_version": "2.27.3"},
    {"in_place": "1"},
    {"source": "SIMULATED"},
]


def test_a_table_of_several_landscapes_is_refused(tmp_path, subtests):
    for cells in MIXED:
        said = pytest.raises(InputError, match=r"t\.csv, line 3: .*(unlike in|in) line 2")
        with subtests.test(cells=cells), said:
            read(tmp_path, DEFAULT, FORCED | cells)


def test_a_point_that_is_there_twice_is_refused(tmp_path):
    assert len(read(tmp_path, DEFAULT, DEFAULT | {"repetition": "2"})) == 2
    with pytest.raises(InputError, match=r"line 4: repetition 1 of line 2 is there twice"):
        read(tmp_path, DEFAULT, FORCED, DEFAULT)


def test_columns_may_be_in_any_order(tmp_path):
    assert read(tmp_path, DEFAULT, FORCED, columns=COLUMNS[::-1]) == read(tmp_path, DEFAULT, FORCED)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (tuple(c for c in COLUMNS if c not in ("algo", "is_default")), "missing columns algo, is_default"),
        ((*COLUMNS, "other_env"), "unknown column other_env"),
        ((*COLUMNS, "time_us"), "duplicate column time_us"),
        (("other_env", "other_env"), f"missing columns {', '.join(COLUMNS)}"),
    ],
)
def test_wrong_columns_are_named(tmp_path, columns, words):
    with pytest.raises(InputError, match=rf"t\.csv, line 1: {words}$"):
        read(tmp_path, {**DEFAULT, "other_env": ""}, columns=columns)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01 not text", b"a,b\n1,2\n", b"{}"])
def test_files_that_are_no_tables_are_refused(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_rows(path)


def test_a_table_without_rows_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"t\.csv has no rows"):
        read(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "none.csv")


def test_a_short_row_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{','.join(COLUMNS)}\nbox,8\n")
    with pytest.raises(InputError, match=r"t\.csv, line 2: fewer fields than columns"):
        read_rows(path)
