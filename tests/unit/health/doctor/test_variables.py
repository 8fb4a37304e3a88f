"""What NCCL makes of the text of a number, and of a list of algorithms or protocols."""

import ctypes

from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.rules_variables import collectives_without_algorithm, forces_ll128
from ncclt.health.doctor.variables import as_nccl_reads, is_number

_STRTOLL = ctypes.CDLL(None).strtoll
_STRTOLL.restype = ctypes.c_longlong
_STRTOLL.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]


@given(st.text(alphabet="0123456789xXaAfF+- \tM\"'#", max_size=8))
def test_numbers_are_those_of_strtoll(text):
    """The reference is the C library, which is what NCCL calls."""
    assert as_nccl_reads(text)[0] == _STRTOLL(text.encode(), None, 0)


def test_whether_all_of_a_text_is_read(subtests):
    for text, number, whole in [
        ("8388608", 8388608, True),
        (" 4 ", 4, True),
        ("8M", 8, False),
        ("true", 0, False),
        ('"4"', 0, False),
        ("010", 8, False),
        ("0x10", 16, True),
        ("-1", -1, True),
        ("1.5", 1, False),
        ("4 # old", 4, True),
    ]:
        with subtests.test(text=text, number=number, whole=whole):
            assert as_nccl_reads(text) == (number, whole)


def test_which_variables_are_numbers():
    assert [is_number(f"NCCL_{n}") for n in ("BUFFSIZE", "IB_DISABLE", "MAX_CTAS")] == [True, True, True]
    assert [is_number(f"NCCL_{n}") for n in ("ALGO", "SOCKET_IFNAME", "CTA_POLICY", "NET_GDR_LEVEL")] == [False] * 4


def test_naming_ll128_or_excluding_others_alone_forces_it():
    forcing = ["LL128", "ll128,Simple", "^LL", "^Simple", "allreduce:^LL", "Simple;allreduce:LL128", "^LL,Simple"]
    assert all(map(forces_ll128, forcing))
    assert not any(map(forces_ll128, ["", "Simple", "LL", "LL,Simple", "^LL128", "Simple;allreduce:LL", "^ll128,LL"]))


def test_collectives_that_are_left_without_an_algorithm(subtests):
    for text, version, lost in [
        ("Tree", "2.27.3", {"all_gather", "reduce_scatter", "broadcast", "reduce"}),
        ("Tree", "2.23.4", set()),
        ("ring,tree;allreduce:tree", "2.27.3", set()),
        ("^ring", "2.27.3", {"broadcast", "reduce"}),
        ("NVLS_Tree", "2.27.3", {"all_gather", "reduce_scatter", "broadcast", "reduce"}),
        ("allgather:tree", "2.27.3", {"all_gather"}),
    ]:
        with subtests.test(text=text, version=version, lost=lost):
            found = collectives_without_algorithm(text, NcclVersion.parse(version))

            assert set(found) == {Collective(name) for name in lost}
