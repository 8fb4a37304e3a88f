"""The table as one word: the plugin reads it like the file, and no launcher would change a character of it."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import InputError
from ncclt.nccl.tuner_plugin.compact_table import MOST_BYTES, encode_table, table_environment
from ncclt.nccl.tuner_table import ALGORITHMS, ANY, FUNCTIONS, NO_UPPER_END, PROTOCOLS, table_text

GOLDEN = Path(__file__).parents[3] / "golden" / "env" / "tuned.tuner-csv"
SIZES = st.one_of(
    st.integers(min_value=0, max_value=99), st.integers(min_value=0, max_value=2**64 - 1), st.just(NO_UPPER_END)
)
COUNTS = st.one_of(st.just(ANY), st.integers(min_value=1, max_value=64), st.just(2**32 - 1))


@st.composite
def rows(draw, shapes=COUNTS):
    first, last = sorted((draw(SIZES), draw(SIZES)))
    words = [draw(st.sampled_from(names)) for names in (FUNCTIONS, ALGORITHMS, PROTOCOLS)]
    fields = (words[0], first, last, words[1], words[2], draw(COUNTS), draw(shapes), draw(shapes))
    return ",".join(map(str, fields))


def table(lines):
    return table_text(lines, table_id="r-1f3c", version=NcclVersion(2, 28, 9), nodes=2, ranks=16)


@given(lines=st.lists(rows(), min_size=1, max_size=30))
def test_compact_table_has_no_character_that_a_shell_would_change(lines):
    compact = encode_table(table(lines))
    assert re.fullmatch(r"[A-Za-z0-9.:_+-]+", compact)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(rows(shapes=st.sampled_from([ANY, 2, 16])), min_size=1, max_size=12), sizes=st.lists(SIZES))
def test_plugin_chooses_the_same_by_either_text(plugin, tmp_path, lines, sizes):
    text = table(lines)
    (tmp_path / "table").write_text(text)
    ends = [int(end) for line in lines for end in line.split(",")[1:3]]
    answers = []
    for name, value in (("NCCLT_POLICY", str(tmp_path / "table")), ("NCCLT_TABLE", encode_table(text))):
        environ = {"NCCLT_POLICY": None, "NCCLT_TABLE": None, name: value}
        with plugin.communicator(ranks=16, nodes=2, environ=environ) as comm:
            said = comm.log[0].replace(str(tmp_path / "table"), "NCCLT_TABLE")
            asked = [comm.ask(function, size) for function in range(5) for size in [*sizes, *ends]]
        answers.append((said, asked))
    assert answers[0] == answers[1]


def test_published_table_has_one_checksum_in_both_texts(plugin):
    text = GOLDEN.read_text()
    compact = encode_table(text)
    announced = re.search(r"fnv1a=([0-9a-f]{16})", text)[1]
    assert compact.endswith(f":{announced}")
    lines = ["allreduce,0,65535,tree,ll,2,2,16", f"allreduce,65536,{2**63 - 1},ring,simple,-1,2,16"]
    example = encode_table(table([*lines, "allgather,4194304,67108864,nvls,simple,16,1,8"]))
    assert example.rpartition(":")[0] == "1:r-1f3c:2.28.9:16.2:16.2A1ekfTL2+RS_8.1G2hwcg-13ydj4NSg"
    assert len(compact) < len(text) / 4
    told = plugin.describe({"NCCLT_TABLE": compact, "NCCLT_POLICY": None})
    assert (told["table"], told["problem"]) == (announced, "")


def test_thousand_rows_fit_into_the_environment_and_more_need_a_file(tmp_path):
    def text(count):
        return table([f"allreduce,{1000 * i},{1000 * i + 999},ring,ll,{1 + i % 32},2,16" for i in range(count)])

    thousand = table_environment(text(1000), tmp_path / "t.csv")
    assert list(thousand) == ["NCCLT_TABLE"]
    assert len(thousand["NCCLT_TABLE"]) < 10_000
    many = text(4096)
    assert len(encode_table(many)) > MOST_BYTES
    by_file = table_environment(many, tmp_path / "t.csv")
    assert by_file["NCCLT_POLICY"] == str(tmp_path / "t.csv")
    assert f"fnv1a={by_file['NCCLT_POLICY_CHECKSUM']}" in many.splitlines()[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_found_by_the_plugin(plugin, data):
    compact = encode_table(table(["allreduce,0,65535,tree,ll,2,2,16", "allgather,5,99,ring,simple,-1,-1,8"]))
    rows_at = compact.index(":16.2:") + 6
    at = data.draw(st.integers(min_value=rows_at, max_value=len(compact) - 1))
    kind = data.draw(st.sampled_from(["cut", "change", "drop"]))
    other = data.draw(st.sampled_from("0z9AR+_-:. "))
    damaged = {
        "cut": compact[:at],
        "change": compact[:at] + other + compact[at + 1 :],
        "drop": compact[:at] + compact[at + 1 :],
    }[kind]
    if damaged == compact:
        return
    told = plugin.describe({"NCCLT_TABLE": damaged, "NCCLT_POLICY": None})
    assert told["problem"]
    assert not told["table"]


def test_broken_word_is_refused_by_the_plugin(subtests, plugin):
    for compact in [
        "1:r:2.28.9:16.2::cbf29ce484222325",
        "2:r:2.28.9:16.2:16.2ARL:0000000000000000",
        "1:r:x:16.2:16.2ARL:",
        "1:r:2.28.9:16:16.2ARL:0000000000000000",
        "1:r:2.28.9:16.2:16.2ARL0:0000000000000000",
        "1:r:2.28.9:16.2:16.2A3w5e11264sgsfRL+RL:0000000000000000",
        "1:r:2.28.9:16.2:16.2A5-4RL:0000000000000000",
        "1:r:2.28.9:16.2:16.2A3w5e11264sgsgRL:0000000000000000",
        "1",
        "a" * 40_000,
    ]:
        with subtests.test(compact=compact):
            assert plugin.describe({"NCCLT_TABLE": compact, "NCCLT_POLICY": None})["problem"]


def test_text_that_is_no_whole_table_is_not_encoded(subtests):
    for text, why in [
        ("", "not a table of ncclt"),
        ("allreduce,0,1,ring,ll,1,1,1\n", "not a table of ncclt"),
        (table(["allreduce,0,1,ring,ll,1,1,1"]) + "allreduce,2,3,ring,ll,1,1,1\n", "cut off or edited"),
        (table(["allreduce,0,1,ring,ll,1,1,1"]).replace(",0,1,", ",0,2,"), "cut off or edited"),
        (table(["allreduce,0,1,ring,ll,1,1,1,-1,1"]), "10 fields"),
        (table(["allreduce,00,1,ring,ll,1,1,1"]), "no row"),
        (table([]), "1 to 4,096 rows"),
    ]:
        with subtests.test(text=text, why=why), pytest.raises(InputError, match=why):
            encode_table(text)
