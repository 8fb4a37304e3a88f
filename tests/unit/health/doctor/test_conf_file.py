"""Configuration files, taken as NCCL takes them."""

from hypothesis import example, given
from hypothesis import strategies as st

from ncclt.health.doctor.conf_file import MOST_VALUE_BYTES, parse_conf_file


def _read(text):
    return parse_conf_file(text.splitlines(keepends=True), "nccl.conf")


def test_names_and_values_are_literal():
    file = _read("# remark\n\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==ens1f0\n")

    assert [(row.name, row.value) for row in file.assignments] == [
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_SOCKET_IFNAME", "=ens1f0"),
    ]
    assert file.errors == ()
    assert str(file.assignments[0].evidence) == "nccl.conf:3: NCCL_DEBUG=WARN"


def test_what_is_not_read_as_meant(subtests):
    for line, said in [
        ("NCCL_ALGO = Ring", "blank at the name"),
        (" NCCL_ALGO=Ring", "blank at the name"),
        ("export NCCL_ALGO=Ring", "`export`"),
        ('NCCL_ALGO="Ring"', "quotes"),
        ("NCCL_ALGO=Ring ", "blank or carriage return"),
        ("NCCL_ALGO=Ring\r", "blank or carriage return"),
        ("NCCL_ALGO=Ring # old", "comment after"),
        (" # NCCL_ALGO=Ring", "first column"),
        ("NCCL_ALGO", "without `=`"),
        ("nccl-algo=Ring", "not a variable's name"),
        (f"NCCL_IB_HCA={'m' * 1024}", "cuts values"),
    ]:
        with subtests.test(line=line, said=said):
            assert [said for what, _ in _read(line + "\n").errors if said in what] == [said]
            assert all(len(row.value) <= MOST_VALUE_BYTES for row in _read(line + "\n").assignments)


@given(st.lists(st.text(st.characters(blacklist_characters="\n"), max_size=30), max_size=5))
@example(["=\ud800"])
def test_every_line_with_an_equals_sign_is_an_assignment(lines):
    """NCCL takes them all, whatever they look like; only a # in the first column and blank lines are skipped."""
    file = parse_conf_file([line + "\n" for line in lines], "any")

    taken = [line for line in lines if line.strip() and not line.startswith("#") and "=" in line]
    assert [row.name for row in file.assignments] == [line.partition("=")[0] for line in taken]
