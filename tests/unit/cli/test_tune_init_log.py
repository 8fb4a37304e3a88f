"""`ncclt tune --init-log`: the search starts from NCCL's own cost table."""

import json

import pytest

from ncclt.cli.tune import tune
from ncclt.errors import InputError, UsageError
from ncclt.testing.samples import sample_cluster, sample_workload

LOG = """\
a:1:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
a:1:1 [0] NCCL INFO comm 0x7f rank 0 nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0
a:1:1 [0] NCCL INFO   Algorithm   |     Tree    |    Ring    |
a:1:1 [0] NCCL INFO AllReduce | 8.0/ 61.1 | 16.5/ 0.0 | 16.4/ 99.2 | 7.8/ 14.0 | 17.8/ 33.2 | 15.2/ 60.0 |
"""


@pytest.fixture
def tuned(command, tmp_path):
    """Tune a small workload on a simulated cluster, after a log was written."""
    cluster, workload = sample_cluster(), sample_workload()
    command.store.clusters.add(cluster)
    command.store.workloads.add(workload)

    def call(log, *words):
        path = tmp_path / "init.log"
        path.write_text(log)
        return command(
            tune,
            "--model",
            workload.name,
            "--cluster",
            cluster.name,
            *("--launcher", "simulate", "--trials", "4", "--blocks", "4", "--json", "--init-log"),
            str(path),
            *words,
        )

    return call


def test_the_tables_are_kept_with_the_study(tuned, command):
    cluster = sample_cluster()
    document = json.loads(tuned(LOG.format(ranks=cluster.world_size, nodes=cluster.nodes)))

    (summary,) = command.store.studies.page().items
    (table,) = summary.study.printed_costs.tables
    assert (table.ranks, table.nodes, len(table.costs)) == (cluster.world_size, cluster.nodes, 5)
    assert any("cost tables printed by NCCL" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("log", "error", "said"),
    [
        (LOG.format(ranks=3, nodes=1), UsageError, "3 ranks on 1 node"),
        (LOG.partition("a:1:1 [0] NCCL INFO   Algo")[0].format(ranks=8, nodes=2), InputError, "holds no table"),
    ],
)
def test_a_log_that_does_not_fit_starts_nothing(log, error, said, tuned, command):
    with pytest.raises(error, match=said):
        tuned(log)
    assert command.store.studies.page().items == ()
