"""The catalogue of NCCL's parameters."""

import subprocess
import sys

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import SettingError
from ncclt.nccl.parameters import CATALOGUE, SET_BY_RULES, check_value, go_together, parameter, searchable

V = NcclVersion.parse("2.28.9")


def test_names_are_unique_and_in_the_form_of_variables():
    names = [row.name for row in CATALOGUE]

    assert len(set(names)) == len(names)
    assert all(name.replace("_", "").isalnum() and name.isupper() for name in names)
    assert not [name for name in names if name.startswith("NCCL_")]


def test_defaults_lie_in_their_domains_and_finite_domains_have_no_repeats():
    for row in CATALOGUE:
        assert row.default is None or row.allows(row.default), row.name
        assert not isinstance(row.values, tuple) or len(set(row.values)) == len(row.values), row.name


def test_the_search_touches_what_is_safe_with_every_value_of_its_ladder():
    rows = {row.name: row for row in searchable(V)}

    assert set(rows) == {
        "BUFFSIZE",
        "NTHREADS",
        "P2P_NET_CHUNKSIZE",
        "P2P_NVL_CHUNKSIZE",
        "P2P_PCI_CHUNKSIZE",
        "MAX_P2P_NCHANNELS",
        "SOCKET_NTHREADS",
        "NSOCKS_PERTHREAD",
        "IB_QPS_PER_CONNECTION",
        "IB_SPLIT_DATA_ON_QPS",
    }
    assert rows["BUFFSIZE"].ladder == (1048576, 2097152, 8388608, 16777216)
    assert all(row.safe and row.allows(value) for row in rows.values() for value in row.ladder)


def test_some_values_make_sense_together_only(subtests):
    for values, sensible in [
        ({}, True),
        ({"SOCKET_NTHREADS": 8, "NSOCKS_PERTHREAD": 8}, True),
        ({"SOCKET_NTHREADS": 16, "NSOCKS_PERTHREAD": 8}, False),
        ({"NSOCKS_PERTHREAD": 4}, False),
        ({"IB_SPLIT_DATA_ON_QPS": 1}, False),
        ({"IB_SPLIT_DATA_ON_QPS": 1, "IB_QPS_PER_CONNECTION": 4}, True),
        ({"P2P_NET_CHUNKSIZE": 1 << 20, "BUFFSIZE": 8 << 20}, True),
        ({"P2P_NET_CHUNKSIZE": 1 << 20, "BUFFSIZE": 16 << 20}, False),
        ({"P2P_NET_CHUNKSIZE": 1 << 19, "BUFFSIZE": 16 << 20}, True),
    ]:
        with subtests.test(values=values, sensible=sensible):
            assert go_together(values) is sensible


def test_no_parameter_with_a_warning_of_damage_counts_as_safe():
    risky = [row for row in CATALOGUE if any(word in row.note for word in ("hang", "corrupt", "order", "promise"))]

    assert len(risky) > 5
    assert not [row.name for row in risky if row.safe]


@pytest.mark.parametrize("name", ["BUFFSIZE", "NCCL_BUFFSIZE"])
def test_a_parameter_is_found_by_its_name(name):
    assert parameter(name).variable == "NCCL_BUFFSIZE"


def test_an_unknown_name_is_refused_with_close_ones():
    with pytest.raises(SettingError, match="'buffsise'") as caught:
        parameter("buffsise")
    assert "BUFFSIZE" in caught.value.hint
    with pytest.raises(SettingError) as caught:
        parameter("qqqqqqqq")
    assert caught.value.hint


def test_a_legal_value_passes(subtests):
    for name, value in [
        ("BUFFSIZE", 4194304),
        ("NTHREADS", 64),
        ("LL128_NTHREADS", 160),
        ("MAX_CTAS", 64),
        ("NET_GDR_LEVEL", "PHB"),
        ("SOCKET_IFNAME", "eth0"),
        ("IB_SL", -1),
    ]:
        with subtests.test(name=name, value=value):
            check_value(name, value, V)

            assert parameter(name).allows(value)


def test_an_illegal_value_is_refused_with_the_domain(subtests):
    for name, value in [
        ("BUFFSIZE", 3),
        ("BUFFSIZE", "4194304"),
        ("BUFFSIZE", True),
        ("NTHREADS", 96),
        ("LL128_NTHREADS", 161),
        ("MAX_CTAS", 0),
        ("MAX_CTAS", 65),
        ("NET_GDR_LEVEL", "phb"),
        ("SOCKET_IFNAME", ""),
        ("SOCKET_IFNAME", "a b"),
        ("SOCKET_IFNAME", "a\nNCCL_X=1"),
        ("SOCKET_IFNAME", 4),
        ("CROSS_NIC", True),
    ]:
        with subtests.test(name=name, value=value):
            with pytest.raises(SettingError) as caught:
                check_value(name, value, V)

            assert caught.value.hint.startswith("it takes ")


def test_a_parameter_that_the_version_lacks_is_refused_with_the_version_that_has_it():
    with pytest.raises(SettingError, match=r"NCCL 2\.26\.2 does not know NCCL_CTA_POLICY") as caught:
        check_value("CTA_POLICY", 1, NcclVersion.parse("2.26.2"))

    assert "2.27.0" in caught.value.hint


def test_channels_are_deprecated_where_ctas_took_their_place():
    old = parameter("MIN_NCHANNELS")

    assert old.is_deprecated_in(V)
    assert not old.is_deprecated_in(NcclVersion.parse("2.16.5"))
    assert not parameter("MIN_CTAS").is_deprecated_in(V)


def test_what_rules_say_is_in_the_catalogue_and_never_searched():
    assert {row.name for row in CATALOGUE} >= SET_BY_RULES
    assert not SET_BY_RULES & {row.name for row in searchable(V, beside_compute=True)}


def test_more_channels_than_nccl_opens_are_searched_beside_compute_alone():
    """Collectives that run alone always look better with them."""
    alone, beside = ({row.name for row in searchable(V, beside_compute=compute)} for compute in (False, True))
    assert beside - alone == {"MIN_CTAS", "MIN_P2P_NCHANNELS", "NCHANNELS_PER_NET_PEER"}


def test_rendering_loads_nothing_heavy():
    """`ncclt env` must start fast."""
    heavy = {"numpy", "difflib", "asyncio", "urllib"}
    code = f"import ncclt.deliver.render.formats, sys; print(sorted({heavy} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
