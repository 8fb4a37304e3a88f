"""The table that the stand-alone worker writes is the one that the plugin reads."""

import json
import os
import time

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Rule
from ncclt.measure.benchmarks.torch_worker import ncclt_torch_session as worker
from ncclt.measure.persistent.attested import Attested
from ncclt.nccl.switching import ForcedState
from ncclt.nccl.tuner_plugin.shared_table import MOST_ROWS
from ncclt.nccl.tuner_table import FUNCTIONS, PluginRow

ALL_REDUCE = FUNCTIONS.index("allreduce")
TABLES = (
    [PluginRow(collective="allreduce", algorithm="ring", protocol="ll", channels=4)],
    [PluginRow(collective="allreduce", algorithm="tree", protocol="simple")] * MOST_ROWS,
    [],
    [PluginRow(collective="broadcast", algorithm="ring", protocol="ll128")],
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "FOLDER", tmp_path)
    return tmp_path


def test_the_plugin_follows_it_from_trial_to_trial(folder, plugin, table):
    reports = worker.make_reports_folder()
    environ = {"NCCLT_POLICY_SHM": table.path, "NCCLT_POLICY": None, "NCCLT_PLUGIN_REPORT": str(reports)}
    with plugin.communicator(ranks=2, nodes=1, environ=environ) as comm:
        assert comm.ask(ALL_REDUCE, 4096).costs == [1.0] * 21
        expected = [(3, 4), (2, 0), None, None]
        for rows, cheapest in zip(TABLES, expected, strict=True):
            table.publish(rows)
            answer = comm.ask(ALL_REDUCE, 4096)
            cheap = [at for at, cost in enumerate(answer.costs) if cost < 1]
            assert (cheap, answer.channels) == (([cheapest[0]], cheapest[1]) if cheapest else ([], 0))
    # And what it reports is what the controller believes.
    (report,) = reports.iterdir()
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2)
    rule = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL)
    assert Attested().check(lines, ForcedState(rules=(rule,)), [message]) == ""


def test_what_killed_ranks_have_left_is_removed_and_nothing_else(folder):
    old = time.time() - 2 * worker.FRESH_S
    living = worker.make_reports_folder()
    for name in ("ncclt-torch-dead", "ncclt-torch-young", "of-somebody-else"):
        (folder / name).mkdir()
    for path in (folder / "ncclt-torch-dead", living, folder / "of-somebody-else"):
        os.utime(path, (old, old))
    (folder / "ncclt-torch-link").symlink_to(folder / "of-somebody-else")
    new = worker.make_reports_folder()
    left = set(folder.iterdir())
    kept = {folder / name for name in ("ncclt-torch-young", "ncclt-torch-link", "of-somebody-else")}
    assert left == {living, new, *kept}
