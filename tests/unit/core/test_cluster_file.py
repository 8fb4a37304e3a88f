"""Clusters as people write them: units, and figures that are surely in another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import cluster_toml, parse_cluster_toml, parse_gbps
from ncclt.errors import InputError
from ncclt.testing.samples import sample_cluster


def test_bandwidths_with_and_without_units(subtests):
    for text, gbps in [
        ("400 Gb/s", 50.0),
        ("400Gb/s", 50.0),
        ("400Gbps", 50.0),
        ("200 Gbit/s", 25.0),
        ("50 GB/s", 50.0),
        ("50", 50.0),
        (12.5, 12.5),
        (25, 25.0),
        ("0.8 Tb/s", 100.0),
        ("100 GB/s", 100.0),
        (0, 0.0),
    ]:
        with subtests.test(text=text, gbps=gbps):
            assert parse_gbps(text, "nic_gbps") == gbps


def test_what_is_implausible_is_refused(subtests):
    for text, said, hint in [
        (400, "no port has 400 GB/s (3200 Gb/s)", "did you mean 50 GB/s (400 Gb/s)?"),
        ("100", "may be GB/s or Gb/s", "did you mean 12.5 GB/s (100 Gb/s)?"),
        ("400 GB/s", "no port has 400 GB/s (3200 Gb/s)", "did you mean 50 GB/s (400 Gb/s)?"),
        *((text, "nic_gbps cannot be", "'400 Gb/s'") for text in ("fast", "400 gb/s", "-3", True, "nan")),
    ]:
        with subtests.test(text=text, said=said, hint=hint):
            with pytest.raises(InputError) as refused:
                parse_gbps(text, "nic_gbps")
            assert said in refused.value.message
            assert hint in refused.value.hint


def test_links_are_faster_than_ports():
    assert parse_gbps(900, "link_gbps") == 900.0
    with pytest.raises(InputError, match="no GPU has 7200 GB/s"):
        parse_gbps(7200, "link_gbps")


names = st.text(min_size=1, max_size=40)


@given(name=names, description=names, sources=st.lists(names, max_size=3), nic=st.floats(0.1, 200.0))
def test_every_cluster_is_read_back(name, description, sources, nic):
    made = Cluster.from_document(
        sample_cluster().to_document() | {"name": name, "description": description, "sources": sources, "nic_gbps": nic}
    )
    assert parse_cluster_toml(cluster_toml(made, {"gpu": "from a\nfile"}), "it") == made


def test_documents_that_were_stored_stay_readable():
    """Whatever they say: a study was measured under it."""
    old = sample_cluster().to_document() | {"nic_gbps": 400.0}
    assert Cluster.from_document(old).nic_gbps == 400.0
