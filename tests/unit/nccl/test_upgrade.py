"""What another NCCL version changes, read from the libraries, the cost model and printed tables."""

import json
from pathlib import Path

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.errors import UsageError
from ncclt.nccl.upgrade import (
    LADDER,
    MEANINGS,
    choice_changes,
    known_variables,
    newest_read,
    policy_change,
    variable_changes,
)
from ncclt.store.shipped import profiles_folder, shipped_clusters

FILE = Path(__file__).parents[3] / "docs" / "reference" / "nccl-versions.json"
PAIRS = shipped_clusters(profiles_folder())["dgx-a100"].sized(nodes=8, gpus_per_node=1, nccl_version="2.22.3")


def changes(old, new):
    found = variable_changes(NcclVersion.parse(old), NcclVersion.parse(new))
    return {(row.variable, row.change): row.note for row in found}


def test_variables_are_those_of_the_libraries():
    assert known_variables() == json.loads(FILE.read_text())["variables"]
    assert newest_read() >= NcclVersion(2, 32, 3)
    up = changes("2.19.3", "2.28.9")
    assert ("NCCL_AGG_CHANNEL_SIZE", "gone") in up
    assert ("NCCL_CONF_FILE", "gone") not in up
    assert "IB_SPLIT" not in str([name for name, change in up if change == "gone"])
    assert up["NCCL_IB_SPLIT_DATA_ON_QPS", "meaning"] == "since 2.20: 0 by default; before, 1"
    down = changes("2.28.9", "2.19.3")
    assert ("NCCL_AGG_CHANNEL_SIZE", "new") in down
    assert {name for name, change in up if change == "new"} == {name for name, change in down if change == "gone"}
    assert changes("2.28.9", "2.28.9") == {}


def test_a_release_with_one_span_of_its_own():
    for name, span in known_variables().items():
        if ".." not in span:
            assert (name, "gone") in changes(span, "2.99") or span == str(newest_read())


def test_meanings_name_variables_that_exist_then():
    for name, since, _note in MEANINGS:
        assert name in known_variables()
        assert NcclVersion.parse(since) > NcclVersion(2, 16, 2)


def test_a_version_older_than_every_library_is_refused():
    with pytest.raises(UsageError, match=r"2\.10\.3 is unknown"):
        changes("2.10.3", "2.28.9")


def test_an_algorithm_that_a_version_adds_changes_choices():
    """PAT came with 2.23, for one rank per node; nothing is said of sizes at which nothing changes."""
    after = PAIRS.sized(nccl_version="2.28.9")
    found = choice_changes([Collective.ALL_GATHER, Collective.ALL_REDUCE], PAIRS, after)
    assert {row.collective for row in found} == {Collective.ALL_GATHER}
    assert all("pat/" in row.after and "pat" not in row.before for row in found)
    assert all(row.min_bytes in LADDER and row.max_bytes in LADDER for row in found)
    assert choice_changes([Collective.ALL_REDUCE], PAIRS, PAIRS) == ()


def test_printed_tables_come_before_the_model():
    def table(version, tree_us):
        costs = [
            PrintedCost(Collective.ALL_REDUCE, Algorithm.TREE, Protocol.LL, tree_us, 1.0),
            PrintedCost(Collective.ALL_REDUCE, Algorithm.RING, Protocol.SIMPLE, 50.0, 10.0),
        ]
        return PrintedCosts(version=version, tables=(PrintedTable(ranks=8, nodes=8, costs=tuple(costs)),))

    after = PAIRS.sized(nccl_version="2.28.9")
    (row,) = choice_changes([Collective.ALL_REDUCE], PAIRS, after, (table("2.22.3", 10.0), table("2.28.9", 1000.0)))
    assert (row.before, row.after, row.min_bytes) == ("tree/ll", "ring/simple", 1024)
    assert row.max_bytes < LADDER[-1]


def test_a_policy_is_compiled_for_the_new_version():
    rule = Rule(collective=Collective.ALL_GATHER, algorithm=Algorithm.PAT, protocol=Protocol.SIMPLE)
    old, new = NcclVersion(2, 28, 9), NcclVersion(2, 22, 3)
    refused = policy_change(Policy(rules=(rule,)), old, new, [Collective.ALL_GATHER])
    assert "pat" in refused.refused.lower()
    ring = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),))
    # From 2.31 on a list needs a base for the collectives that it does not name.
    for version, differ in (((2, 29, 7), False), ((2, 31, 2), True)):
        changed = policy_change(ring, NcclVersion(2, 28, 9), NcclVersion(*version), [Collective.ALL_REDUCE])
        assert (changed.refused, changed.variables_differ, changed.table_lost) == ("", differ, False)
    before = policy_change(ring, NcclVersion(2, 28, 9), NcclVersion(2, 20, 5), [Collective.ALL_REDUCE])
    assert (before.variables_differ, before.table_lost) == (True, True)
