"""`bench/replay.py`: a study or a landscape searched again on its own measurements."""

import importlib
import json
from pathlib import Path

import optuna
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.printed_costs import PrintedCost, PrintedCosts, PrintedTable
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Study, StudyState
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.measure.testbed import simulated_testbed
from ncclt.measure.trial import launch
from ncclt.search.space import cluster_space
from ncclt.store import open_store
from ncclt.testing.fakes import FakeRunner, FakeTrialLog
from ncclt.testing.samples import sample_cluster, sample_workload

pytestmark = pytest.mark.thorough

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    verbosity = optuna.logging.get_verbosity()
    yield importlib.import_module("replay")
    optuna.logging.set_verbosity(verbosity)


@pytest.fixture
def recording(bench, cluster, workload, landscape):
    """Every setting of the space, launched once, and one that crashes."""
    space = cluster_space(workload.collectives, cluster, parameters={})
    crashing = next(s for s in space.distinct if s.channels == 64)

    def time_of(setting, message, number):
        return Outcome.CRASHED if setting == crashing else landscape(setting, message, number)

    trial_log, runner = FakeTrialLog(), FakeRunner(cluster, time_of)
    for setting in (DEFAULT, *(s for s in space.distinct if not s.is_default)):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    return bench.recorded("s", cluster, workload, trial_log.trials())


@pytest.mark.parametrize("method", ["ours", "tpe", "random", "gp"])
def test_a_method_begins_at_the_default_and_never_loses_what_it_knows(bench, recording, method):
    if method == "gp":
        pytest.importorskip("torch")
    found = bench.replay(recording, method, seed=1, launches=8)

    # The default takes 1200 us per step; tree/ll on small messages and many ring channels on the large one 940.
    assert found[0] == pytest.approx(1200 / recording.ideal_us - 1)
    assert len(found) <= 8
    assert list(found) == sorted(found, reverse=True), "without noise more knowledge is not a worse"
    assert bench.replay(recording, method, seed=1, launches=8) == found


def test_launches_within_count_from_where_the_regret_stays(bench):
    wavering = (0.2, 0.005, 0.04, 0.01, 0.0)

    assert (bench.launches_within(wavering, 0.03), bench.launches_within(wavering, 0.001)) == (4, 5)
    assert bench.launches_within((0.2, 0.1), 0.05) is None


def test_a_study_without_a_search_is_refused(bench, cluster, workload, landscape):
    trial_log = FakeTrialLog()
    launch(FakeRunner(cluster, landscape), workload, trial_log, Setting(), phase=Phase.SEARCH)
    with pytest.raises(UsageError, match="too few"):
        bench.recorded("s", cluster, workload, trial_log.trials())


def test_a_study_is_replayed_from_the_tables_that_it_began_from(bench, cluster, workload, landscape):
    trial_log, runner = FakeTrialLog(), FakeRunner(cluster, landscape)
    for setting in cluster_space(workload.collectives, cluster, parameters={}).distinct:
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    found = set()
    for loser, winner in ((Algorithm.TREE, Algorithm.RING), (Algorithm.RING, Algorithm.TREE)):
        costs = tuple(
            PrintedCost(Collective.ALL_REDUCE, algorithm, Protocol.SIMPLE, 10.0, gbps)
            for algorithm, gbps in ((loser, 50.0), (winner, 400.0))
        )
        tables = PrintedCosts(tables=(PrintedTable(ranks=4, nodes=1, channels=20, costs=costs),))
        recording = bench.recorded("s", cluster, workload, trial_log.trials(), tables)
        assert recording.printed_costs is tables
        found.add(bench.replay(recording, "ours", seed=1, launches=16))

    assert len(found) == 2, "another beginning, another search"


@pytest.fixture
def searched(tmp_path):
    """The URL of a store with a study that launched every setting on the simulated cluster."""
    cluster, url = sample_cluster(), f"sqlite:///{tmp_path / 'a.db'}"
    workload = sample_workload().placed(nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
    runner, trial_log = simulated_testbed(cluster, seed=1, reason="test").runner, FakeTrialLog()
    for setting in cluster_space(workload.collectives, cluster, parameters={}).distinct[:24]:
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    study = Study(
        id="abc123",
        name="s",
        cluster=cluster,
        workload=workload,
        launcher="simulate",
        simulated=True,
        process_wide=(),
        seed=1,
        state=StudyState.DONE,
    )
    with open_store(url) as store:
        store.studies.open(study)
        for trial in trial_log.trials():
            store.trials.add("abc123", trial)
    return url


def test_methods_are_compared_on_the_same_measurements_of_a_study(bench, searched, capsys):
    words = ("abc123", "--storage", searched, "--method", "ours", "--method", "tpe", "--seeds", "2", "--launches", "6")

    assert bench.main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows] == ["ours", "tpe"]
    for row in rows:
        assert row["seeds"] == 2
        assert 0 <= row["regret"]["5"]["mean"] <= row["regret"]["5"]["worst"] <= row["default_regret"] + 1e-9
        assert len(row["launches_within"]["0.03"]) == 2
    assert bench.main(words) == 0
    text = capsys.readouterr().out
    assert "settings were measured" in text
    assert "launches to 1 %" in text


def test_a_landscape_is_replayed_as_it_was_recorded(bench, tmp_path, capsys):
    rows = ["system,gpus,nodes,interconnect,collective,size_bytes,algo,proto,nchannels,time_us"]
    rows += [
        f"9x Q9,8,1,NVSwitch,all_reduce,65536,{algo},LL,{channels},{time_us}"
        for algo, channels, time_us in (("Ring", 2, 30), ("Ring", 8, 20), ("Tree", 2, 15), ("Tree", 8, 10))
    ]
    rows.append("9x Q9,8,1,NVSwitch,all_reduce,65536,,,,25")
    (file := tmp_path / "a.csv").write_text("\n".join(rows))

    assert bench.main(["--landscape", str(file), "--json", "--seeds", "1", "--method", "ours"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["recording"].endswith(", 64KiB")]
    assert (row["settings"], row["default_regret"], row["best_setting_regret"]) == (5, 1.5, 0.0)
    assert row["regret"][str(row["launches"])]["worst"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("abc", "--seeds", "0"), "at least 1"),
        (("abc", "--launches", "1"), "at least 2"),
        (("abc", "--method", "best"), "invalid choice"),
        ((), "give a study"),
        (("abc", "--landscape", "a.csv"), "give a study"),
    ],
)
def test_a_senseless_call_is_refused(bench, words, said, capsys):
    with pytest.raises(SystemExit) as end:
        bench.main(words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unknown_study_is_named(bench, searched, capsys):
    assert bench.main(["nope", "--storage", searched]) == 2
    assert "no study 'nope'" in capsys.readouterr().err
