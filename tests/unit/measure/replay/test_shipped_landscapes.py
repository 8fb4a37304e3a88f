"""The recorded clusters that ncclt ships: every one replays."""

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome
from ncclt.measure.replay import ReplayRunner, load_landscape
from ncclt.measure.target import DEFAULT_RECORDED
from ncclt.store.shipped import profiles_folder, recorded_clusters, shipped_clusters
from ncclt.user_dirs import recorded_tables

CLUSTERS = recorded_clusters(profiles_folder())
TABLES = recorded_tables()


def test_every_table_has_its_cluster_and_every_name_is_used_once():
    assert set(TABLES) == set(CLUSTERS)
    assert not set(TABLES) & set(shipped_clusters(profiles_folder()))
    assert DEFAULT_RECORDED in TABLES


def test_it_says_where_there_is_something_to_choose():
    """Four RTX 4090 were recorded at five sizes, and under settings beside the NCCL default at one of them."""
    landscape = load_landscape(TABLES["rtx4090-1x4"])
    assert landscape.choices == "all_gather 64 MiB, all_reduce 64 MiB, reduce_scatter 64 MiB"


def test_all_of_them_are_small():
    assert sum(path.stat().st_size for path in TABLES.values()) < 1e6


@pytest.mark.parametrize("name", sorted(TABLES))
def test_it_replays_on_the_cluster_that_is_described(name):
    landscape = load_landscape(TABLES[name])
    assert sum(source.startswith("licence: ") for source in CLUSTERS[name].sources) == 1
    assert landscape.cluster.recorded_label == f"recorded: {CLUSTERS[name].description}, {CLUSTERS[name].sources[0]}"
    covered = [
        Message(collective=collective, dtype="int8", size_bytes=size)
        for (collective, setting), curve in landscape.curves.items()
        if setting == DEFAULT
        for size, _ in curve
    ]
    covered = [message for message in covered if landscape.covers(message)]
    assert covered
    result = ReplayRunner(landscape, seed=0).measure(DEFAULT, covered, repeat=0)
    assert (result.outcome, len(result.measurements)) == (Outcome.OK, len(covered))


def test_four_tables_of_one_system_are_one_recorded_cluster():
    landscape = load_landscape(TABLES[DEFAULT_RECORDED])
    assert {collective for collective, _ in landscape.curves} == {
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.BROADCAST,
    }
    assert len(landscape.settings()) == 54
    # Below 8 MiB the library ran something else than all_gather's forced settings.
    gather = [Message(collective=Collective.ALL_GATHER, dtype="int8", size_bytes=size << 20) for size in (4, 8)]
    assert [landscape.covers(message) for message in gather] == [False, True]
    broadcast = Message(collective=Collective.BROADCAST, dtype="int64", size_bytes=8192)
    assert landscape.time_samples(DEFAULT, broadcast) == (22.0,)
