"""`ncclt landscape`: recorded clusters by name, and a study as a table that can be replayed."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster_file import cluster_toml
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.replay import load_landscape
from ncclt.measure.replay.export import export, exported_cluster
from ncclt.measure.replay.landscape_rows import write_rows
from ncclt.testing.samples import sample_study
from ncclt.user_dirs import recorded_tables

PLAIN = ("--setting", "default")
"""For outputs that name no setting."""

LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, channels=4)
BUFFERS = Setting(parameters=(("BUFFSIZE", 8388608), ("MIN_CTAS", 16)))
MESSAGES = tuple(
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4) for size in (4096, 8192)
)
PART = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2)


def run(*words, rc=(0,)):
    done = CliRunner().invoke(app, words)
    assert done.exit_code in rc, done.output
    return done.output


def launch(number, setting, times, *, outcome=Outcome.OK, interpolated=False):
    measured = tuple(
        Measurement(message=message, samples_us=(time_us,), interpolated=interpolated)
        for message, time_us in zip((*MESSAGES, PART), times, strict=False)
    )
    result = TrialResult(outcome=outcome, measurements=measured, place="node07,node08")
    return Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=1.0)


TRIALS = [
    launch(0, DEFAULT, (10.0, 20.0, 5.0)),
    launch(1, LL, (8.0, 19.0, 4.0)),
    launch(2, BUFFERS, (9.0, 15.0)),
    launch(3, DEFAULT, (11.0, 21.0)),
    launch(4, LL, (1.0, 1.0), outcome=Outcome.WRONG_RESULT),
    launch(5, LL, (2.0, 2.0), interpolated=True),
]
LARGE = Rule(collective=Collective.ALL_REDUCE, min_bytes=8192, algorithm=LL.algorithm, protocol=LL.protocol, channels=4)


@pytest.fixture
def study(cluster):
    calls = tuple(MessageCalls(message=message, calls_per_step=1.0) for message in MESSAGES)
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    ended = {"state": StudyState.DONE, "created": "2026-11-22T10:00:00+00:00"}
    return replace(sample_study("mine"), cluster=cluster, workload=workload, launcher="slurm", simulated=False, **ended)


def exported(study, path, more=()):
    rows, notes = export(study, (*TRIALS, *more), version="9.9")
    with path.open("w", newline="") as file:
        write_rows(rows, file)
    path.with_suffix(".toml").write_text(cluster_toml(exported_cluster(study, rows, name=path.stem)))
    return rows, notes


def test_what_is_exported_is_read_back(study, tmp_path):
    rows, notes = exported(study, tmp_path / "mine.csv")
    landscape = load_landscape(tmp_path / "mine.csv")
    assert len(rows) == 8
    assert len(notes) == 2
    assert sorted(landscape.settings(), key=str) == sorted([LL, BUFFERS], key=str)
    assert landscape.time_samples(DEFAULT, MESSAGES[0]) == (10.0, 11.0)
    assert [landscape.time_samples(LL, message) for message in MESSAGES] == [(8.0,), (19.0,)]
    assert landscape.time_samples(BUFFERS, MESSAGES[1]) == (15.0,)
    assert landscape.cluster.fingerprint() == study.cluster.fingerprint()
    assert landscape.cluster.recorded_label == "recorded: 4x A100 (pair), study mine; 2026-11-22; ncclt 9.9"


def test_a_launch_of_a_policy_is_written_by_what_it_forced_on_each_message(study, tmp_path):
    table = replace(launch(6, DEFAULT, (12.0, 18.0)), phase=Phase.PROVE, policy=Policy(rules=(LARGE,)))
    exported(study, tmp_path / "mine.csv", [table])
    landscape = load_landscape(tmp_path / "mine.csv")
    assert [landscape.time_samples(DEFAULT, message) for message in MESSAGES] == [(10.0, 11.0, 12.0), (20.0, 21.0)]
    assert [landscape.time_samples(LL, message) for message in MESSAGES] == [(8.0,), (19.0, 18.0)]


def test_a_rounded_size_is_exported_as_it_was_sent(study, tmp_path):
    """Two messages that nccl-tests rounds to one size share its time, and are replayed from it."""
    odd = tuple(replace(MESSAGES[0], collective=Collective.ALL_GATHER, size_bytes=size) for size in (4084, 4092))
    measured = tuple(Measurement(message=one, samples_us=(7.0,), measured_bytes=4096) for one in odd)
    more = [
        replace(launch(number, setting, ()), result=TrialResult(outcome=Outcome.OK, measurements=measured))
        for number, setting in ((6, DEFAULT), (7, LL))
    ]
    rows, notes = exported(study, tmp_path / "mine.csv", more)
    sent = [(row.size_bytes, row.repetition) for row in rows if row.collective is Collective.ALL_GATHER]
    assert sent == [(4096, 1), (4096, 1)]
    assert "2 messages exported at the nearest size that the benchmark can send" in notes
    landscape = load_landscape(tmp_path / "mine.csv")
    assert landscape.time_samples(DEFAULT, odd[0]) == (7.0,)
    assert not landscape.is_exact(DEFAULT, odd[0])
    assert landscape.time_samples(DEFAULT, replace(odd[0], size_bytes=2048)) == ()


def test_a_setting_that_spares_reductions_is_exported_as_it_took_effect(study):
    spared = launch(6, replace(LL, spares_reductions=True), (12.0, 22.0))
    rows, _ = export(study, [*TRIALS, spared], version="1.0")
    assert [row.setting for row in rows if row.time_us == 12.0] == [DEFAULT]


def test_launches_of_what_a_job_runs_today_are_no_times_of_the_default(study):
    today = replace(launch(6, DEFAULT, (90.0, 90.0)), phase=Phase.PROVE, arm=Arm.TODAY)
    rows, _ = export(study, [*TRIALS, today], version="1.0")
    assert rows == export(study, TRIALS, version="1.0")[0]
    assert today.label == "today"


def test_hosts_and_variables_of_the_site_are_left_out(study, tmp_path):
    told = replace(
        study.cluster,
        sources=("seen on node07",),
        description="node07 and node08",
        site_variables=(("NCCL_SOCKET_IFNAME", "of_me"),),
    )
    exported(replace(study, cluster=told), tmp_path / "mine.csv")
    for path in tmp_path.iterdir():
        assert not any(word in path.read_text() for word in ("node0", "of_me"))


def test_a_simulated_study_and_persistent_ranks_are_marked_in_every_source(study, tmp_path):
    trials = [replace(t, result=replace(t.result, persistent=True)) for t in TRIALS]
    rows, _ = export(replace(study, simulated=True, launcher="simulate"), trials, version="9.9")
    assert all("SIMULATED" in row.source and "persistent ranks" in row.source for row in rows)
    exported(replace(study, simulated=True, launcher="simulate"), tmp_path / "s.csv")
    landscape = load_landscape(tmp_path / "s.csv")
    assert landscape.simulated
    assert "SIMULATED" in landscape.cluster.recorded_label


def test_the_list_and_one_recorded_cluster_fit_a_terminal():
    assert "mi355x-2x8: AMD MI355X, 2 nodes x 8 GPUs, RoCE, RCCL" in run("landscape", "show")
    listed = json.loads(run("landscape", "show", "--json"))["landscapes"]
    assert [entry["settings"] for entry in listed if entry["name"] == "mi355x-2x8"] == [54]
    shown = run("landscape", "show", "mi355x-2x8")
    assert "recorded: AMD MI355X, 2 nodes x 8 GPUs, RoCE, RCCL, github.com/ylerman-dn/amd-dev" in shown
    table = [line.rstrip() for line in shown.splitlines() if "iB " in line]
    assert len(table) == 15 + 18 + 18 + 15
    assert max(map(len, table)) <= 80
    best = json.loads(run("landscape", "show", "mi355x-2x8", "--json"))["best"]["all_reduce"]
    assert [(r["default_us"], r["best_us"], r["setting"]) for r in best if r["size"] == "32 MiB"] == [
        (279.3, 250.77, "ring/ll128 c=40")
    ]


def test_a_name_that_is_not_recorded_is_refused_with_those_that_are():
    assert "one of h100-1x4, " in run("landscape", "show", "leonardo", rc=[3])


HEADER = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n#  (B)"


def output(times, *, command="", info=(), nccl="22809", gpu="NVIDIA A100-SXM4-80GB", wrong=0, ranks=4):
    """What all_reduce_perf prints on one node of four A100."""
    lines = [command] if command else []
    lines += [f"# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library={nccl}"]
    lines += ["# Collective test starting: all_reduce_perf", "# nThread 1 nGpus 1 minBytes 8", "# Using devices"]
    for rank in range(ranks):
        lines.append(f"#  Rank {rank} Group  0 Pid 7 on node{rank // 4} device {rank % 4} [0000:{rank}0:00] {gpu}")
    lines += [f"node0:7:7 [0] NCCL INFO {text}" for text in info]
    lines.append(HEADER)
    lines += [f"{size} 1 float sum -1 {time} 1 1 {wrong} {time + 1} 1 1 0" for size, time in times.items()]
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1"]
    return "\n".join(lines) + "\n"


SLOW, FAST = {4096: 10.0, 8192: 20.0}, {4096: 8.0, 8192: 19.0}


@pytest.fixture
def logs(tmp_path, monkeypatch, cluster):
    """A folder of outputs, a store with their cluster, and `import` as a function."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("NCCLT_STORAGE", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.chdir(tmp_path)
    cluster = replace(cluster, name="hall", gpu="A100-SXM4-80GB", gpus_per_node=4, nodes=1)
    (tmp_path / "hall.toml").write_text(cluster_toml(cluster))
    run("cluster", "add", "hall.toml")

    def imported(*words, rc=(0,), **files):
        for name, text in files.items():
            (tmp_path / f"{name}.log").write_text(text)
        names = [f"{name}.log" for name in files]
        return run("landscape", "import", *names, "--name", "mine", "--cluster", "hall", *words, rc=rc)

    return imported


def load_mine():
    return load_landscape(recorded_tables()["mine"])


def test_imported_outputs_are_listed_and_replayed(logs):
    said = logs(
        *PLAIN,
        plain=output(SLOW),
        again=output(SLOW),
        ring=output(FAST, command="mpirun -np 4 -x NCCL_ALGO=Ring -x NCCL_PROTO=LL -x NCCL_MAX_CTAS=4 all_reduce_perf"),
    )
    assert "mine: 6 times, the default and 1 setting" in said
    landscape = load_mine()
    assert landscape.settings() == (LL,)
    assert [landscape.time_samples(s, MESSAGES[0]) for s in (DEFAULT, LL)] == [(10.0, 10.0), (8.0,)]
    assert "mine: hall, 1 x 4 A100-SXM4-80GB" in run("landscape", "show")
    assert json.loads(run("landscape", "show", "mine", "--json"))["nccl_version"] == "2.28.9"
    listed = [line.split() for line in run("cluster", "list").splitlines() if line.startswith("mine ")]
    assert "recorded" in listed[0]
    words = ("--model", "bert", "--cluster", "mine", "--launcher", "replay")
    assert "none of the messages" in run("tune", *words, rc=[1]), "bert has larger ones"


COMMANDS = {
    "NCCL_ALGO=Tree NCCL_PROTO=LL ./build/all_reduce_perf -b 8": "tree/ll",
    "+ srun --export=ALL,NCCL_ALGO=Tree,NCCL_PROTO=Simple all_reduce_perf": "tree/simple",
    "mpirun -x NCCL_ALGO=nvls \\\n  -x NCCL_BUFFSIZE=1048576 \\\n  all_reduce_perf": "nvls/auto BUFFSIZE=1048576",
    "NCCL_PROTO='LL128' all_reduce_perf": "auto/ll128",
    "NCCL_MAX_NCHANNELS=8 all_reduce_perf": "c=8",
}


def test_the_forced_setting_is_read_from_the_command_line(logs):
    forced = {f"forced{number}": output(FAST, command=command) for number, command in enumerate(COMMANDS)}
    logs(*PLAIN, plain=output(SLOW), **forced)
    assert {setting.label for setting in load_mine().settings()} == set(COMMANDS.values())


def test_the_forced_setting_is_read_from_lines_of_nccl(logs):
    info = [
        "NCCL_ALGO set by environment to Ring",
        "NCCL_PROTO set by environment to LL",
        "NCCL_MAX_CTAS set by environment to 4.",
    ]
    logs(*PLAIN, plain=output(SLOW), forced=output(FAST, info=info))
    assert load_mine().settings() == (LL,)


@pytest.mark.parametrize("start", ["export ", "+ export ", "declare -x ", ""])
def test_the_forced_setting_is_read_from_exported_variables(logs, start):
    ring, unset = f"{start}NCCL_ALGO=ring\nall_reduce_perf", "unset NCCL_ALGO\nall_reduce_perf"
    logs(*PLAIN, plain=output(FAST, command=ring) + output(SLOW, command=unset))
    found = load_mine()
    assert [setting.label for setting in found.settings()] == ["ring/auto"]
    assert found.time_us(DEFAULT, MESSAGES[0]) == SLOW[4096]


def test_two_runs_in_one_output_have_settings_of_their_own(logs):
    both = output(SLOW, command="NCCL_ALGO=ring all_reduce_perf") + output(
        FAST, command="NCCL_ALGO=tree all_reduce_perf"
    )
    logs(*PLAIN, plain=output(SLOW), both=both)
    assert [setting.label for setting in load_mine().settings()] == ["ring/auto", "tree/auto"]


def test_an_option_names_what_an_output_does_not_say(logs):
    logs(*PLAIN, "--setting", "forced.log=ring/ll c=4", plain=output(SLOW), forced=output(FAST))
    assert load_mine().settings() == (LL,)
    logs("--force", "--setting", "tree/ll", "--setting", "plain.log=default", plain=output(SLOW), forced=output(FAST))
    assert [setting.label for setting in load_mine().settings()] == ["tree/ll"]


JSON_ROW = {
    "size": 4096,
    "count": 1024,
    "type": "float",
    "redop": "sum",
    "root": "-1",
    "out_of_place": {"time": 8.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": "0"},
}


def test_a_json_result_is_imported(logs):
    devices = [{"group": 0, "rank": r, "device": r, "device_hex": f"{r}", "hostname": "node0"} for r in range(4)]
    document = {
        "version": 3,
        "nccl_version": 22809,
        "args": ["./all_reduce_perf"],
        "results": [JSON_ROW],
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
    }
    logs(*PLAIN, "--setting", "result.log=ring/ll c=4", plain=output(SLOW), result=json.dumps(document))
    assert load_mine().time_samples(LL, MESSAGES[0]) == (8.0,)


RING = "NCCL_ALGO=ring all_reduce_perf"
REFUSED = [
    ((), {"plain": output(SLOW)}, "plain.log does not show the forced setting"),
    ((), {"plain": output(SLOW, command="./all_reduce_perf -b 8")}, "plain.log does not show the forced setting"),
    (PLAIN, {"a": output(FAST, command="NCCL_ALGO=ring,tree all_reduce_perf")}, "NCCL_ALGO=ring,tree"),
    (PLAIN, {"a": output(FAST, command="NCCL_MIN_NCHANNELS=8 all_reduce_perf")}, "no setting of ncclt"),
    (("--setting", "a.log=tree/ll"), {"a": output(FAST, command=RING)}, "a.log was run with ring/auto, not tree/ll"),
    ((*PLAIN, "--setting", "tree/ll"), {"a": output(FAST)}, "is for all outputs"),
    (PLAIN, {"a": output(SLOW)}, "mine has the NCCL default only"),
    ((), {"a": output(SLOW, command=RING)}, "mine has no row of the NCCL default"),
    (PLAIN, {"a": output(SLOW), "b": output(FAST, command=RING, nccl="22703")}, "b.log has NCCL 2.27.3"),
    (PLAIN, {"a": output(SLOW) + output(FAST, nccl="22703")}, "a.log has NCCL 2.27.3"),
    (PLAIN, {"a": output(SLOW) + output(FAST, ranks=8)}, "a.log has nodes: 2, and a.log 1"),
    (PLAIN, {"a": output(SLOW, gpu="NVIDIA H100 80GB HBM3")}, "a.log is from NVIDIA H100"),
    (PLAIN, {"a": output(SLOW, ranks=3)}, "3"),
    (PLAIN, {"a": "nothing"}, "a.log is not nccl-tests output"),
    (PLAIN, {"a": "Usage: all_reduce_perf"}, "a.log: nccl-tests measured nothing"),
    (PLAIN, {"a": f"{RING}\n" + output(SLOW, command="all_reduce_perf")}, "several command lines before"),
    (
        PLAIN,
        {"a": output(SLOW, command=RING), "b": output(FAST, command=f"NCCL_P2P_DISABLE=1 {RING}")},
        "b.log was run with NCCL_P2P_DISABLE=1, and a.log with (unset)",
    ),
]


@pytest.mark.parametrize(("words", "files", "said"), REFUSED)
def test_what_is_not_known_or_mixed_is_refused_and_nothing_is_written(logs, tmp_path, words, files, said):
    assert said in logs(*words, rc=(1, 2), **files)
    assert not (tmp_path / "data" / "ncclt" / "landscapes").exists()


def test_an_output_gets_one_setting_and_may_have_an_equals_sign_in_its_name(logs):
    files = {"plain": output(SLOW, command="all_reduce_perf"), "x=y": output(FAST, command="all_reduce_perf")}
    logs(*PLAIN, "--setting", "x=y.log=ring/simple c=8", **files)
    assert [setting.label for setting in load_mine().settings()] == ["ring/simple c=8"]
    twice = ("--setting", "x=y.log=ring/ll", "--setting", "x=y.log=tree/ll")
    assert "--setting names x=y.log twice" in logs(*PLAIN, "--force", *twice, rc=[2], **files)
    assert "there is no output y.log" in logs("--force", "--setting", "y.log=ring/ll", rc=[2], **files)


def test_a_taken_name_is_refused(logs):
    forced = {"plain": output(SLOW), "ring": output(FAST, command=RING)}
    logs(*PLAIN, **forced)
    assert "there is a cluster 'mine' already" in logs(*PLAIN, rc=[2], **forced)
    logs(*PLAIN, "--force", **forced)
    for name in ("leonardo", "mi355x-2x8", "hall"):
        assert f"there is a cluster '{name}' already" in logs(*PLAIN, "--force", "--name", name, rc=[2], **forced)


def test_a_folder_of_prefixed_outputs_is_imported(logs, tmp_path):
    (tmp_path / "sweep").mkdir()
    for name, text in (("plain", output(SLOW)), ("ring", output(FAST, command=RING))):
        prefixed = "".join(f"2025-01-06T10:00:00.123Z [1,0]<stdout>:{line}\n" for line in text.splitlines())
        (tmp_path / "sweep" / f"{name}.log").write_text(prefixed)
    assert "the default and 1 setting, in" in logs(*PLAIN, "sweep")
    (tmp_path / "sweep" / "job.nsys-rep").write_text("x")
    assert "report of Nsight Systems" in logs(*PLAIN, "--force", "sweep", rc=[1])


def test_wrong_results_are_left_out_and_said(logs):
    said = logs(*PLAIN, plain=output(SLOW), a=output(FAST, command=RING), b=output(FAST, command=RING, wrong=3))
    assert "2 rows without a time or with wrong results left out" in said


def test_damaged_sizes_are_left_out_and_what_is_written_can_be_read(logs):
    said = logs(*PLAIN, plain=output(SLOW), ring=output({4096: 8.0, 10**20: 19.0}, command=RING))
    assert "1 row without a time or with wrong results left out" in said
    assert load_mine().settings()


def test_an_export_needs_a_name_for_two_files():
    assert "has no ending .csv" in run("landscape", "export", "x", "--out", "mine.txt", rc=[2])
