"""The clusters that come with ncclt load, say where their figures are from, and can be simulated."""

import tomllib
from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.errors import InputError
from ncclt.measure.simulated import SimulatedRunner

PRESETS = sorted((Path(__file__).resolve().parents[4] / "profiles" / "clusters").glob("*.toml"))


def load(path: Path) -> Cluster:
    return Cluster.from_document(tomllib.loads(path.read_text(encoding="utf-8")))


def test_the_presets_of_the_issue_are_there():
    assert {p.stem for p in PRESETS} >= {"leonardo", "dgx-a100", "dgx-h100", "aws-p4d", "aws-g6e", "pcie-pair"}


def test_a_preset_loads_under_its_own_name_with_sources(subtests):
    for path in PRESETS:
        with subtests.test(path=path):
            cluster = load(path)
            assert cluster.name == path.stem
            assert cluster.description
            assert cluster.sources
            assert Cluster.from_document(cluster.to_document()) == cluster
            assert Cluster.from_document({"schema": 1, **cluster.to_document()}) == cluster
            with pytest.raises(InputError, match="schema 2"):
                Cluster.from_document({"schema": 2, **cluster.to_document()})


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_preset_moves_more_bandwidth_with_larger_messages(path, subtests):
    runner = SimulatedRunner(load(path), seed=0, sigma=0)
    cluster = runner.cluster
    for collective in Collective:
        messages = [
            Message(collective=collective, dtype="float32", size_bytes=1 << e, group_size=cluster.world_size)
            for e in (10, 18, 28)
        ]
        rates = [m.busbw_gbps(runner.expected_us(DEFAULT, m)) for m in messages]
        with subtests.test(collective=collective):
            assert rates == sorted(rates)
            assert rates[-1] < 2 * max(cluster.link_gbps, cluster.nics_per_node * cluster.nic_gbps)


def test_pcie_pair_is_near_the_recorded_curve():
    """Seed tables, section 3, path NODE: 947.6 to 53866 µs from 16 MiB to 1 GiB."""
    runner = SimulatedRunner(load(next(p for p in PRESETS if p.stem == "pcie-pair")), seed=0, sigma=0)
    for size, measured in ((16777216, 947.6), (67108864, 3528.4), (268435456, 13698.0), (1073741824, 53866.0)):
        message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size)
        assert runner.expected_us(DEFAULT, message) == pytest.approx(measured, rel=0.1)
