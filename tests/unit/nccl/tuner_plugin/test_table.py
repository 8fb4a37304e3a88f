"""Tables that the plugin refuses, each with one line that says why, and then NCCL's init fails on that rank."""

import os
import resource
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Rule
from ncclt.deliver.answer import answer_from_table
from ncclt.errors import InputError, UsageError
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_plugin.loaded import API_VERSIONS
from ncclt.nccl.tuner_table import FUNCTIONS, communicator_shape, table_checksum, table_text

GOOD = "allreduce,0,65536,tree,ll,2,-1,-1"
ALL_REDUCE = FUNCTIONS.index("allreduce")


def refusal(opening):
    """Return the sentence with which NCCL's init fails."""
    with pytest.raises(InputError, match="returned the error 5: TUNER/ncclt: this rank cannot use the table") as caught:
        opening.__enter__()
    return str(caught.value)


def is_used(comm):
    """Tell whether the first row took effect, checking that exactly one line tells the same."""
    used = comm.ask(ALL_REDUCE, 64).costs[0] < 1
    assert len(comm.log) == 1
    assert comm.log[0].startswith("TUNER/ncclt: ")
    assert comm.log[0].endswith("keeping the NCCL default") is not used
    return used


WRONG_WORDS = {
    0: ("AllReduce", "alltoall"),
    1: ("65537", "-1"),
    2: ("", "1M", "18446744073709551616"),
    3: ("rings",),
    4: ("ll64", ""),
    5: ("0", "-2"),
    6: ("x",),
    7: ("99999999999999999999", "-1\0", " " * 300 + "-1", "-1,-1,-1,-1", "-1,4", "-1,-1,0", "-1,-1,1"),
}
"""Field -> what it cannot be; the last brings further ones."""


def test_one_wrong_row_refuses_the_whole_table(subtests, opened):
    fields = GOOD.split(",")
    rows = [",".join([*fields[:at], word, *fields[at + 1 :]]) for at, words in WRONG_WORDS.items() for word in words]
    names = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
    for row in (*rows, ",".join(fields[:-1]), names, "export NCCL_ALGO=ring"):
        with subtests.test(row=row):
            assert "line 3" in refusal(opened(GOOD, "# a comment", row))


@pytest.mark.parametrize("row", [GOOD + ",-1,-1", " allreduce , 0,65536 ,tree,\tll,2,-1,-1\r", GOOD + ",-1"])
def test_blanks_around_fields_and_line_ends_of_windows_are_accepted(opened, row):
    with opened("", "# comment", row, "") as comm:
        assert is_used(comm)


def header(lines, **changes):
    said = {"id": "r-7", "nccl": "2.28.9", "rows": len(lines), "fnv1a": f"{table_checksum(lines):016x}", **changes}
    return "# ncclt-table 1 " + " ".join(f"{key}={value}" for key, value in said.items())


def test_a_header_that_fits_is_accepted_and_named(opened):
    # Names of models and clusters are free text in the comments: no later one can pose as the header.
    with opened(header([GOOD], later="word"), "# ncclt-table 2 of a hostile name", GOOD) as comm:
        assert is_used(comm)
        assert "table r-7 of" in comm.log[0]
        assert "1 of 1 rows for 16 ranks on 2 nodes" in comm.log[0]
        assert f"{table_checksum([GOOD]):016x}" in comm.log[0]
    with opened(header([])) as comm:
        assert not is_used(comm)


def test_a_header_that_does_not_fit_refuses_the_table(subtests, opened):
    for first, why in [
        (header([GOOD], rows=2), "cut off"),
        (header([GOOD], rows=0), "cut off"),
        (header([GOOD], fnv1a="0" * 16), "checksum"),
        (header([GOOD], fnv1a="0"), "damaged"),
        (header([GOOD], rows="x"), "damaged"),
        (header([GOOD], nccl="latest"), "damaged"),
        ("# ncclt-table 2 id=r", "format"),
        ("# ncclt-table one", "format"),
    ]:
        with subtests.test(first=first, why=why):
            assert why in refusal(opened(first, GOOD))


def change_each_digit(digits):
    """Yield a hexadecimal number with another digit at each place in turn."""
    for at, digit in enumerate(digits):
        yield f"{digits[:at]}{(int(digit, 16) + 1) % 16:x}{digits[at + 1 :]}"


def test_checksum_that_differs_in_one_digit_is_refused_wherever_it_stands(plugin, opened, tmp_path):
    text = table_text([GOOD], table_id="r", version=NcclVersion(2, 28, 9), nodes=2, ranks=16)
    compact, checksum = encode_table(text), f"{table_checksum([GOOD]):016x}"
    path = tmp_path / "announced"
    path.write_text(text)
    assert answer_from_table(path).table
    for other in change_each_digit(checksum):
        assert "its rows do not fit its checksum" in refusal(opened(header([GOOD], fnv1a=other), GOOD))
        assert "was announced" in refusal(named(plugin, path, NCCLT_POLICY_CHECKSUM=other))
        damaged = compact.replace(checksum, other)
        assert "checksum" in plugin.describe({"NCCLT_TABLE": damaged, "NCCLT_POLICY": None})["problem"]
        changed = tmp_path / "changed"
        changed.write_text(text.replace(checksum, other))
        with pytest.raises(UsageError, match="damaged or was edited"):
            answer_from_table(changed)


@pytest.mark.parametrize("rows", [(), ("# only comments",)])
def test_table_without_rows_is_taken_for_cut_off(opened, rows):
    assert "it has no rows" in refusal(opened(*rows))


def test_limits_of_rows_and_bytes_are_said(opened):
    with opened(*[GOOD] * 4096) as comm:
        assert is_used(comm)
    assert "more than 4096 rows" in refusal(opened(*[GOOD] * 4097))
    assert "1048576 bytes" in refusal(opened(GOOD, "#" * 1024 * 1024))


def named(plugin, path, *, api=6, **variables):
    environ = {"NCCLT_POLICY": str(path), "NCCLT_TABLE": None, **variables}
    return plugin.communicator(api=api, ranks=8, nodes=1, environ=environ)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.mkdir(), "it is a folder"),
        (os.mkfifo, "it is no regular file"),
        (lambda path: None, "it cannot be opened: No such file"),
    ],
    ids=["dir", "pipe", "none"],
)
def test_table_that_is_no_file_fails_init_and_does_not_hang(plugin, tmp_path, make, why):
    """These left one rank with the NCCL default, while the others used the table."""
    make(tmp_path / "table")
    for api in API_VERSIONS:
        assert why in refusal(named(plugin, tmp_path / "table", api=api))


@pytest.mark.parametrize(("mode", "why"), [(0o664, "chmod go-w"), (0o646, "chmod go-w"), (0o644, "")])
def test_table_that_others_can_write_is_refused(plugin, tmp_path, mode, why):
    path = tmp_path / "table"
    path.write_text(GOOD)
    path.chmod(mode)
    if why:
        assert why in refusal(named(plugin, path))
        return
    with named(plugin, path) as comm:
        assert is_used(comm)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_table_of_another_user_is_refused(plugin, tmp_path):
    path = tmp_path / "table"
    path.write_text(GOOD)
    os.chown(path, 12345, 12345)
    assert "it belongs to user 12345" in refusal(named(plugin, path))


def test_table_without_a_free_descriptor_fails_init(plugin, tmp_path):
    path = tmp_path / "table"
    path.write_text(GOOD)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        why = refusal(named(plugin, path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files" in why


def test_table_is_refused_where_its_checksum_is_not_the_announced_one(plugin, tmp_path):
    path = tmp_path / "table"
    path.write_text(f"{header([GOOD])}\n{GOOD}\n")
    announced = f"{table_checksum([GOOD]):016x}"
    with named(plugin, path, NCCLT_POLICY_CHECKSUM=announced) as comm:
        assert is_used(comm)
    for other in ("0" * 16, "x", announced[:-1]):
        assert "was announced" in refusal(named(plugin, path, NCCLT_POLICY_CHECKSUM=other))


def test_unknown_agreement_fails_init(plugin, tmp_path):
    path = tmp_path / "table"
    path.write_text(GOOD)
    assert "neither `hook` nor `none`" in refusal(named(plugin, path, NCCLT_AGREEMENT="hok"))
    with named(plugin, path, NCCLT_AGREEMENT="none") as comm:
        assert is_used(comm)


@pytest.mark.parametrize("policy", [None, ""])
def test_without_a_table_nothing_changes(plugin, policy, tmp_path):
    environ = {"NCCLT_POLICY": policy, "NCCL_TUNER_CONFIG_FILE": None}
    with plugin.communicator(ranks=8, nodes=1, environ=environ) as comm:
        assert not is_used(comm)
        assert "NCCLT_TABLE and NCCLT_POLICY are not set" in comm.log[0]
    # The variable of NVIDIA's example plugin counts where ours names none.
    (tmp_path / "table").write_text(GOOD)
    with plugin.communicator(
        ranks=8, nodes=1, environ={**environ, "NCCL_TUNER_CONFIG_FILE": str(tmp_path / "table")}
    ) as comm:
        assert is_used(comm)


def test_every_communicator_reads_its_table_anew(opened):
    with opened(GOOD) as first, opened("reduce,0,1,ring,ll,-1,-1,-1") as second:
        assert first.ask(ALL_REDUCE, 64).costs[0] < 1
        assert second.ask(ALL_REDUCE, 64).costs[0] == 1


def test_each_communicator_takes_the_section_of_its_shape(opened):
    """Tensor parallel groups in a node, data parallel ones of the same size across four, and the whole job."""

    def row(size, nodes, ranks):
        return f"allreduce,0,{size},ring,ll,4,{nodes},{ranks}"

    rows = ["# communicators of 8 ranks on 1 node", row(100, 1, 8), row(200, 4, 8), row(300, 4, 32)]
    found = {}
    for nodes, ranks in ((1, 8), (4, 8), (4, 32), (2, 8), (2, 16)):
        with opened(*rows, ranks=ranks, nodes=nodes) as comm:
            answers = {size: comm.ask(FUNCTIONS.index("allreduce"), size).channels for size in (100, 200, 300)}
            found[nodes, ranks] = max((size for size, channels in answers.items() if channels), default=0)
    assert found == {(1, 8): 100, (4, 8): 200, (4, 32): 300, (2, 8): 0, (2, 16): 0}


def test_a_rule_is_for_the_placement_that_was_measured():
    rule = Rule(collective=Collective.ALL_REDUCE, group_size=8, algorithm=Algorithm.RING, protocol=Protocol.LL)
    shapes = {
        (spans, nodes): communicator_shape(replace(rule, spans_nodes=spans), nodes=nodes, ranks=8 * nodes)
        for spans in (None, False, True)
        for nodes in (4, 16)
    }
    assert shapes == {
        (None, 4): (-1, 8),
        (None, 16): (-1, 8),
        (False, 4): (1, 8),
        (False, 16): (1, 8),
        (True, 4): (4, 8),
        (True, 16): (8, 8),
    }
    assert communicator_shape(replace(rule, group_size=0), nodes=4, ranks=32) == (4, 32)


def test_comments_among_the_rows_are_not_counted():
    rows = ["# communicators of 8 ranks on 1 node", GOOD]
    text = table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=1, ranks=8)
    assert f"rows=1 fnv1a={table_checksum([GOOD]):016x}" in text.splitlines()[0]
