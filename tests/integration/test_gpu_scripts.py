"""bench/gpu from end to end, on stand-ins of the CUDA driver and of NCCL that sum for real (fakes/gpu)."""

import csv
import importlib
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from program import run_program
from waiting import until

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.measure.replay import ReplayRunner, load_landscape
from ncclt.nccl.tuner_plugin.build import build, compiler, source_folder
from runner_contract import RunnerContract

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "bench" / "gpu"
FAKES = HERE.parent / "fakes" / "gpu"
MODULES = ("nccl", "device", "messages", "recipes", "ranks", "live", "landscape")
QUICK = ("--samples", "3", "--sample-ms", "1")
KIB, MIB = 1 << 10, 1 << 20
PATIENCE_S = 600


class Machine:
    """Where the stand-ins lie, and the scripts' modules."""

    def __init__(self, folder):
        self.cuda = self._compiled(folder / "libcuda.so", "fake_cuda.c")
        self.nccl = self._compiled(folder / "libnccl-2.28.so", "fake_nccl.c", "-DFAKE_VERSION=22809")
        self.newer = self._compiled(folder / "libnccl-2.30.so", "fake_nccl.c", "-DFAKE_VERSION=23007")
        self.plugin = build(folder / "libnccl-tuner-ncclt.so")

    @staticmethod
    def _compiled(target, source, *extra):
        flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-I{source_folder()}", *extra]
        done = run_program([compiler(), *flags, "-o", target, FAKES / source, "-lpthread", "-ldl"])
        assert done.returncode == 0, done.stderr
        return target

    def options(self, output, *, nccl=None):
        return ["--output", output, "--nccl", nccl or self.nccl, "--cuda", self.cuda, "--plugin", self.plugin]

    def run(self, script, output, *more, nccl=None, fault=""):
        """Run a script and return how it ended."""
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FAKE_NCCL_FAULT": fault}
        return run_program([sys.executable, SCRIPTS / script, *self.options(output, nccl=nccl), *more], env=environ)

    def place(self, output, *, recipe="FAKE_HOSTS", nccl=None, **more):
        import recipes

        import live

        return live.Place(
            recipe=getattr(recipes, recipe),
            nccl=nccl or self.nccl,
            plugin=self.plugin,
            cuda=self.cuda,
            output=output,
            **{"ranks": 2, "room_bytes": 4 * MIB, **more},
        )


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C compiler here: the stand-ins cannot be built")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
            patch.setitem(sys.modules, name, importlib.import_module(name))
        yield Machine(tmp_path_factory.mktemp("gpu"))


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def all_reduce(size, dtype="float32"):
    return Message(collective=Collective.ALL_REDUCE, dtype=dtype, size_bytes=size)


class TestLiveRanks(RunnerContract):
    @pytest.fixture(autouse=True)
    def _ranks(self, machine, tmp_path):
        import live

        with live.LiveRanks(machine.place(tmp_path)) as self.ranks:
            yield

    def runner(self):
        return self.ranks

    def impossible(self):
        return Setting(parameters=(("IB_TC", 3),))


@pytest.mark.parametrize(("recipe", "ranks"), [("FAKE_HOSTS", 3), ("ONE_HOST", 4)])
def test_every_collective_and_dtype_is_sent_and_checked(machine, tmp_path, recipe, ranks):
    import live

    nccl = machine.newer if recipe == "ONE_HOST" else machine.nccl
    sent = [
        Message(collective=Collective(name), dtype=dtype, size_bytes=96 * KIB)
        for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
        for dtype in ("float32", "bfloat16", "float16", "int8", "int64")
    ]
    with live.LiveRanks(machine.place(tmp_path, recipe=recipe, nccl=nccl, ranks=ranks)) as place:
        result = place.measure(DEFAULT, sent, repeat=0)
        cluster = place.cluster
    assert result.outcome is Outcome.OK, result.detail
    assert [(m.message, m.wrong) for m in result.measurements] == [(message, 0) for message in sent]
    assert (cluster.nodes, cluster.world_size) == ((3, 3) if recipe == "FAKE_HOSTS" else (1, 4))


def test_settings_are_switched_in_one_process_that_lives_on(machine, tmp_path):
    import live

    settings = [
        DEFAULT,
        Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE),
        Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=1),
        Setting(parameters=(("BUFFSIZE", 8 * MIB),)),
        DEFAULT,
    ]
    with live.LiveRanks(machine.place(tmp_path)) as place:
        results = [place.measure(setting, [all_reduce(2 * MIB)], repeat=0) for setting in settings]
    default, tree, one_channel, buffers, again = (r.measurements[0].time_us for r in results)
    # The clock of the stand-in moves by a formula (fake_nccl.c), so these are no times of this machine.
    assert default == pytest.approx(883.9, rel=0.02)
    assert tree == pytest.approx(627.2, rel=0.02)
    assert one_channel == pytest.approx(6735.9, rel=0.02)
    assert buffers == pytest.approx(841.9, rel=0.02)
    assert again == pytest.approx(default, rel=0.02)
    assert [path.name for path in tmp_path.iterdir()] == ["child-1"]


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ("hang", Outcome.TIMEOUT, "did not end in time"),
        ("crash", Outcome.CRASHED, "ended with -6"),
        ("error", Outcome.CRASHED, "ncclAllReduce: an error (2)"),
        ("wrong", Outcome.WRONG_RESULT, "2 elements came out wrong"),
    ],
)
def test_what_a_message_does_to_nccl_is_an_outcome(machine, tmp_path, monkeypatch, fault, outcome, said):
    import live

    monkeypatch.setenv("FAKE_NCCL_FAULT", f"{fault}:{64 * KIB}")
    with live.LiveRanks(machine.place(tmp_path, limit_s=5.0 if fault == "hang" else 60.0)) as place:
        place.start()
        result = place.measure(DEFAULT, [all_reduce(4 * KIB), all_reduce(64 * KIB)], repeat=0)
        assert result.outcome is outcome, result.detail
        assert said in result.detail
        place.place = replace(place.place, limit_s=60.0)
        assert place.measure(DEFAULT, [all_reduce(4 * KIB)], repeat=0).outcome is Outcome.OK


def test_what_no_table_can_say_is_not_measured_as_something_else(machine, tmp_path):
    import live

    with live.LiveRanks(machine.place(tmp_path)) as place:
        for setting in (Setting(channels=4), Setting(algorithm=Algorithm.RING), Setting(protocol=Protocol.LL)):
            result = place.measure(setting, [all_reduce(4 * KIB)], repeat=0)
            assert result.outcome is Outcome.INVALID, setting
            assert "a table can force" in result.detail, setting


def test_the_plugin_is_loaded_and_obeyed(machine, tmp_path):
    done = machine.run("plugin_loads.py", tmp_path, "--largest", str(MIB), "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert all(row["held"] for row in rows)
    claims = {row["claim"]: row["seen"] for row in rows}
    assert claims["first table: all_reduce of 1 MiB goes as its rule says"] == "ring/ll/4"
    assert claims["switched table: all_reduce of 1 MiB goes as its rule says"] == "tree/simple/4"
    assert claims["switched table: all_reduce of 512 KiB stays NCCL's own"] == "ring/simple/8"
    assert claims["ncclt attest: took effect"].startswith("took-effect")
    assert json.loads((tmp_path / "attestation.json").read_text())["effect"] == "took-effect"
    assert "Algo TREE proto SIMPLE" in (tmp_path / "shared-table" / "child-1" / "nccl.second.log").read_text()


def test_a_plugin_that_is_not_obeyed_is_noticed(machine, tmp_path):
    # A plugin that NCCL loads and that does nothing.
    idle = tmp_path / "idle.c"
    idle.write_text(
        '#include "nccl_tuner_abi.h"\n'
        "static int begin(void **c, uint64_t i, size_t r, size_t n, nccl_logger l, struct nccl_nvl_domain_v5 *d,\n"
        "  struct nccl_constants_v5 *k) { (void)i; (void)r; (void)n; (void)l; (void)d; (void)k; *c = 0; return 0; }\n"
        "static int ask(void *c, int f, size_t b, int p, float **t, int a, int o, int r, int *n) {\n"
        "  (void)c; (void)f; (void)b; (void)p; (void)t; (void)a; (void)o; (void)r; *n = 1; return 0; }\n"
        "static int end(void *c) { (void)c; return 0; }\n"
        'const struct nccl_tuner_v5 ncclTunerPlugin_v5 = {"idle", begin, ask, end};\n'
    )
    library = tmp_path / "idle.so"
    subprocess.run([compiler(), "-fPIC", "-shared", f"-I{source_folder()}", "-o", library, idle], check=True)

    done = machine.run("plugin_loads.py", tmp_path / "out", "--largest", str(128 * KIB), "--plugin", library)

    assert done.returncode == 1
    lost = [line for line in done.stdout.splitlines() if line.startswith("LOST")]
    assert any("NCCL says that it uses the plugin" in line for line in lost)
    assert any("8 KiB goes as its rule says" in line for line in lost)
    assert any("4 channels" in line or "128 KiB" in line for line in lost)


def test_a_landscape_is_recorded_resumed_and_replayed(machine, tmp_path):
    options = ("--largest", str(3 * MIB), "--buffsizes", str(8 * MIB), "--minutes", "20", "--rounds", "1", *QUICK)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Killed when it has kept some rows, wherever that hits it.
    cut = subprocess.Popen(
        [sys.executable, SCRIPTS / "landscape.py", *machine.options(tmp_path), *options],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        for _ in range(4):
            assert cut.stdout.readline()
        assert any(scratch.iterdir())
    finally:
        cut.kill()
        cut.stdout.close()
        cut.wait(PATIENCE_S)
    # Its child hears of it and leaves nothing behind.
    until(lambda: not any(scratch.iterdir()))
    before = rows_of(tmp_path / "landscape.csv")
    assert len(before) >= 4 * 2

    done = machine.run("landscape.py", tmp_path, *options)

    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(tmp_path / "landscape.csv")
    assert rows[: len(before)] == before
    about = json.loads((tmp_path / "landscape.json").read_text())
    # 4 pairs x (NCCL's own channels and 1, 2, 4, 8) x 2 sizes of buffers, and the other size with nothing forced.
    assert len(about["launches"]) == 4 * 5 * 2 + 1 + 1
    # One more where the kill came between the table and its record.
    assert {count for key, count in about["launches"].items() if key != DEFAULT.digest()} <= {1, 2}
    assert about["launches"][DEFAULT.digest()] >= 7
    assert not about["failures"]
    assert about["about"]["environment"]["NCCL_MAX_CTAS"] == "48"

    landscape = load_landscape(tmp_path / "landscape.csv")
    assert (landscape.cluster.nodes, landscape.cluster.world_size, landscape.cluster.nccl_version) == (2, 2, "2.28.9")
    assert landscape.cluster.fabric == "ethernet"
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE)
    replayed = ReplayRunner(landscape, seed=0)
    default_us, tree_us = (
        replayed.measure(s, [all_reduce(2362368)], repeat=0).measurements[0].time_us for s in (DEFAULT, tree)
    )
    assert default_us == pytest.approx(990, rel=0.02)
    assert tree_us == pytest.approx(701, rel=0.02)

    other = machine.run("landscape.py", tmp_path, *options, "--max-channels", "4")
    assert other.returncode == 2
    assert "was measured otherwise: environment" in other.stderr


def test_a_setting_that_fails_is_named_and_not_tried_again(machine, tmp_path):
    options = ("--largest", str(3 * MIB), "--buffsizes", "", "--rounds", "2", *QUICK)
    done = machine.run("landscape.py", tmp_path, *options, fault="tree:2362368")

    assert done.returncode == 0, done.stdout + done.stderr
    failures = json.loads((tmp_path / "landscape.json").read_text())["failures"]
    assert set(failures) == {f"tree/{p}{c}" for p in ("ll", "simple") for c in ("", " c=1", " c=2", " c=4", " c=8")}
    assert done.stdout.count("wrong_result") == len(failures)
    landscape = load_landscape(tmp_path / "landscape.csv")
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE)
    assert landscape.time_samples(tree, all_reduce(2362368)) == ()


def test_tuned_against_default_ends_in_a_verdict_and_a_table_that_takes_effect(machine, tmp_path):
    done = machine.run("tuned.py", tmp_path, "--largest", str(3 * MIB), "--minutes", "8", "--trials", "8", *QUICK)

    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "tuned.json").read_text())
    verdict = document["recommendation"]["table"]["verdict"]
    # The stand-in's formula makes the tree 29 % faster than NCCL's own ring there.
    assert verdict["decision"] == "tuned", verdict["reason"]
    assert verdict["speedup"] == pytest.approx(1.38, rel=0.03)
    assert document["attestation"]["effect"] == "took-effect"
    assert "allreduce," in (tmp_path / "table.csv").read_text()
    assert "table: tuned" in done.stdout


def test_all_of_it_in_one_go_keeps_what_came_out_and_the_default_where_it_is_best(machine, tmp_path):
    options = [str(part) for part in machine.options("unused", nccl=machine.newer)[2:]]
    environ = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    limits = ["--minutes", "12", "--part", "2", "--pack"]
    done = run_program(
        ["sh", SCRIPTS / "all.sh", tmp_path, *limits, "--", *options, "--largest", str(8 * KIB), *QUICK],
        timeout=2 * PATIENCE_S,
        env=environ,
    )

    summary = (tmp_path / "summary.txt").read_text()
    assert done.returncode == 0, summary + done.stdout + done.stderr
    assert "tuned: exit code 0" in summary
    assert "plugin_loads_one_host: exit code 0" in summary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.txt", "tuned.json", "work-part-2.tar.gz"]
    # 8 KiB of broadcast alone: NCCL's own ring over LL is the fastest that there is.
    document = json.loads((tmp_path / "tuned.json").read_text())
    assert document["recommendation"]["table"]["verdict"]["decision"] == "keep-default"
    assert document["attestation"] is None
    with tarfile.open(tmp_path / "work-part-2.tar.gz") as packed:
        kept = packed.getnames()
    assert "work/tuned/tuned.json" in kept
    assert "work/tuned/table.csv" not in kept
