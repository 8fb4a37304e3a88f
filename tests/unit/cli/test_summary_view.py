"""How a study ends on the command line: rows that add up, true reasons, what was left out, what it is worth."""

import json
import re
from dataclasses import replace

import pytest

from ncclt.cli import env
from ncclt.cli.studies import build_command_again, show
from ncclt.cli.tune import tune
from ncclt.core.budget import MIN_BLOCKS, Budget
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.target import Target
from ncclt.prove.study_summary import describe_rounded, summarize_study
from ncclt.testing.landscapes import write_landscape
from ncclt_api.pages.report import study_report

KIB = 1024
MIB = 1024 * KIB
TIMES_US = {
    # Ring/LL128 is best for large messages and bad for small ones; forced variables can only be ring/simple.
    ("", ""): (20.0, 1000.0),
    ("ring", "ll128"): (40.0, 800.0),
    ("ring", "simple"): (30.0, 1010.0),
}


def test_channels_of_one_group_are_tuned_and_delivered_as_its_options(command, tmp_path, capsys):
    """From the trials to the text that PyTorch reads; nothing but channels is tried."""
    rows = [
        {"nccl_version": "2.27.3", "size_bytes": 4 * MIB, "algo": algo, "proto": proto, "nchannels": c, "time_us": time}
        for algo, proto, c, time in (("", "", "", 100.0), ("", "", 4, 80.0), ("ring", "ll128", 8, 50.0))
    ]
    path = write_landscape(tmp_path / "box.csv", rows)
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4 * MIB)
    mine = MessageCalls(message=message, calls_per_step=1)
    command.store.workloads.add(Workload(name="tp", messages=(mine,), provenance=Provenance(source="test")))

    words = ("--model", "tp", "--landscape", str(path), "--launcher", "replay", "--through", "options", "--json")
    command(tune, *words)
    (found,) = command.store.recommendations.find()
    place = found.fingerprint
    where = ["--nodes", str(place.nodes), "--gpus-per-node", str(place.gpus_per_node)]
    job = ["--cluster", found.cluster, "--model", "tp", *where, "--nccl-version", "2.27.3"]
    code = env.main([*job, "--storage", command.url, "--allow", "recorded", "--format", "pg-options"])
    text = capsys.readouterr().out

    assert code == 0
    assert text.endswith("options = ProcessGroupNCCL.Options()\noptions.config.max_ctas = 4\n")
    assert "# recorded: " in text
    assert {trial.setting.algorithm for trial in command.store.trials.find(found.study)} == {None}


@pytest.fixture
def recorded(command, tmp_path):
    """A call of `tune` on a recording of two sizes."""
    rows = [
        {"nccl_version": "2.27.3", "size_bytes": size, "algo": algo, "proto": proto, "time_us": time}
        for (algo, proto), times in TIMES_US.items()
        for size, time in zip((4 * KIB, 32768 * KIB), times, strict=True)
    ]
    path = write_landscape(tmp_path / "box.csv", rows)
    command.store.workloads.add(
        Workload(
            name="mine",
            messages=tuple(
                MessageCalls(
                    message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size),
                    calls_per_step=calls,
                )
                for size, calls in ((4 * KIB, 1), (32768 * KIB, 10))
            ),
            provenance=Provenance(source="test"),
            step_time_us=200_000,
            exposed_us=100_000,
        )
    )
    return lambda *words: command(tune, "--model", "mine", "--launcher", "replay", "--landscape", str(path), *words)


def test_the_rows_add_up_to_the_headline(recorded):
    document = json.loads(recorded("--json"))
    assert document["use"]["form"] == "table"
    default_us = sum(row["calls_per_step"] * row["default_us"] for row in document["messages"])
    policy_us = sum(row["calls_per_step"] * row["tuned_us"] for row in document["messages"])
    assert default_us / policy_us == pytest.approx(document["use"]["speedup"])
    saved_us = default_us - policy_us
    assert sum(row["saved_us_per_step"] for row in document["messages"]) == pytest.approx(saved_us)
    text = recorded("-v")
    (total,) = (line.split()[3:] for line in text.splitlines() if line.startswith("all, per step"))
    assert float(total[2].replace(",", "")) == pytest.approx(saved_us, rel=0.005)
    assert re.search(r"all_reduce 4 KiB .*NCCL default", text)
    table = text[: text.index("all, per step")].splitlines()
    assert max(map(len, table)) <= 80
    assert "\033" not in text, "bold is for terminals"


def test_what_was_not_measured_is_told_wherever_the_result_is(recorded, command):
    far = Message(collective=Collective.ALL_TO_ALL, dtype="float32", size_bytes=1 << 30)
    mine = command.store.workloads.get("mine")
    calls = MessageCalls(message=far, calls_per_step=64)
    command.store.workloads.add(replace(mine, name="mixed", messages=(*mine.messages, calls)))
    text, document = recorded("--model", "mixed", "-v"), json.loads(recorded("--model", "mixed", "--json"))
    study = command.store.studies.page().items[0].study
    for said in (
        "1 of 3 messages (all_to_all; over 99 % of the bytes) are outside the landscape and left to NCCL",
        "ame bits as the NCCL default: no: all_reduce is forced to ring",
    ):
        assert sum(said in note for note in document["notes"]) == 1
        assert [output.count(said) for output in (text, command(show, study.id))] == [1, 1]
        assert said in study_report(command.store, study)


def test_a_benchmark_is_recommended_only_for_sizes_that_it_can_send():
    whole = Message(collective=Collective.ALL_GATHER, dtype="bfloat16", size_bytes=4112, group_size=8)
    broken = replace(whole, size_bytes=4100)
    assert describe_rounded({whole: 4096}).endswith("; --benchmark torch_collectives sends exact sizes")
    assert describe_rounded({whole: 4096, broken: 4096}).endswith("torch_collectives sends 1 of 2 sizes exactly")
    assert "torch_collectives" not in describe_rounded({broken: 4096})


def test_a_size_that_the_benchmark_could_not_send_is_told_wherever_the_result_is(recorded, command):
    recorded()
    study = command.store.studies.page().items[0].study
    trials = command.store.trials.find(study.id)
    large, small = trials[0].result.measurements
    result = replace(trials[0].result, measurements=(large, replace(small, measured_bytes=4160)))
    rounded = replace(trials[0], result=result)
    command.store.trials.add(study.id, replace(rounded, number=len(trials), repeat=9))
    said = "easured at the nearest size that the benchmark can send: all_reduce of 4,096 B at 4,160 B; "
    for text in (recorded("-v"), command(show, study.id)):
        assert text.count(said) == 1
    document = json.loads(recorded("--json"))
    assert sum(said in note for note in document["notes"]) == 1
    assert {row["size_bytes"]: row["measured_bytes"] for row in document["messages"]} == {4096: 4160, 32768 * KIB: None}


def test_only_what_the_chosen_way_could_force_is_searched(recorded):
    plan = json.loads(recorded("--through", "variables", "--dry-run", "--json"))
    assert plan["left_out"] == ["1 setting: forcing LL128 with NCCL_PROTO bypasses NCCL's safety check"]
    assert plan["study"] != json.loads(recorded("--dry-run", "--json"))["study"]
    assert "left_out" not in json.loads(recorded("--dry-run", "--json"))
    assert "keep-default: keeping the NCCL default for mine on box (demonstration on recorded timings)" in recorded(
        "--through", "variables"
    )
    said = "search space: 1 of 2 settings (1 excluded: forcing LL128 with NCCL_PROTO bypasses NCCL's safety check)"
    assert said in json.loads(recorded("--through", "variables", "--json"))["notes"]


def test_a_demonstration_claims_no_worth_and_gives_no_command(recorded, command):
    """Times from elsewhere are no result for the job: not on the command line, in JSON, or on the page."""
    text, document = recorded(), json.loads(recorded("--json"))
    study = command.store.studies.page().items[0].study
    assert text.startswith("demonstration: mine on box communicates 1.25x faster than the NCCL default (95 % CI ")
    assert "Next:     run `ncclt tune` on your own cluster; recorded timings are a demonstration" in text
    for said in (text, command(show, study.id), study_report(command.store, study)):
        assert not re.search("Worth:|Saves:|Use:|ncclt (run|env) --cluster|--allow|GPU-hours/week|paid back", said)
    assert document["use"]["command"] is None
    assert document["gain_ms"] is document["gpu_hours_per_week"] is document["payback_hours"] is None


def measured_summary(store, steps_per_day=None, **changes):
    """End the newest study as if its times had been measured where it ran."""
    study = store.studies.page().items[0].study
    found = replace(store.recommendations.find(study=study.id)[0], launcher="local", recorded="", **changes)
    study = replace(study, launcher="local")
    return study, summarize_study(study, store.trials.find(study.id), found, steps_per_day=steps_per_day)


def test_the_gain_is_told_in_steps_hours_and_against_its_ceiling(recorded, command):
    recorded()
    _, summary = measured_summary(command.store, steps_per_day=1000)
    told = dict(summary.facts)
    assert told["Limit"] == "at most 100 ms (50.0 %) per step, the exposed communication of the recording"
    assert "GPU-hours/week at 1,000 steps/day" in told["Worth"]
    assert re.fullmatch(r"tuned: mine on box communicates 1\.2.*; steps are 10 % shorter", summary.headline)
    assert len(summary.lines(again="")) < 12
    assert summary.use.command.startswith("ncclt run --cluster box")


def test_a_stale_study_claims_no_gain(recorded, command):
    recorded()
    _, summary = measured_summary(command.store, stale="the driver changed")
    assert summary.gain is None
    assert not {"Saves", "Worth"} & {word for word, _ in summary.facts}
    assert "the driver changed" in summary.use.why


@pytest.mark.parametrize(("blocks", "again"), [(1, MIN_BLOCKS), (2, 4), (16, 32)])
def test_the_command_that_continues_a_proof_has_enough_blocks_to_decide(blocks, again):
    command = build_command_again("mine", Target(cluster="pair"), Budget(blocks=blocks), "", searched_enough=True)
    assert f"--blocks {again}" in command
