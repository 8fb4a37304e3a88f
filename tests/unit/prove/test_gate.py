"""The gate before an upgrade: two sides of a command that is played, from their logs and tables to a decision."""

import errno
import json
import math
import random
import re
from pathlib import Path

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.verification import Side
from ncclt.errors import NodesLostError, NotStartedError, UsageError
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.prove.comparison import Comparison
from ncclt.prove.gate import ComparedCall, GateDecision, GateRequest, decide_gate, judge_groups, run_gate
from ncclt.prove.step_times import VerifyRequest
from ncclt.store.shipped import profiles_folder, shipped_clusters

SIZES = (1 << 10, 1 << 19, 1 << 26)
DGX = shipped_clusters(profiles_folder())["dgx-h100"]


def table(times_us, *, wrong=0):
    """Return what nccl-tests prints."""
    columns = "time   algbw   busbw  #wrong"
    rows = [
        f"{size} {size // 4} float sum -1 {time_us:.4f} 1.00 1.00 0 {time_us:.4f} 1.00 1.00 0"
        for size, time_us in times_us.items()
    ]
    head = "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 2\n"
    names = f"#  size  count  type  redop  root  {columns}  {columns}\n"
    return f"{head}{names}" + "\n".join(rows) + f"\n# Out of bounds values : {wrong} OK\n# Avg bus bandwidth : 1\n"


class PlayedJob:
    """A launcher whose command prints `play(variables, number)`, and logs the NCCL of `versions`."""

    name = "played"

    def __init__(self, play, versions):
        self._play = play
        self._versions = versions
        self.plans = []

    def plan(self, argv, *, variables, timeout_s, files=()):
        return LaunchPlan(argv=tuple(argv), set_env=tuple(sorted(variables.items())), timeout_s=timeout_s)

    def run(self, plan):
        variables = dict(plan.set_env)
        number = len(self.plans)
        self.plans.append(plan)
        version = self._versions["X" in variables]
        if variables["NCCL_DEBUG"] == "INFO":
            log = Path(variables["NCCL_DEBUG_FILE"].replace("%h", "n0").replace("%p", "7"))
            said = [f"NCCL version {one}+cuda12.8" for one in (version if isinstance(version, tuple) else (version,))]
            said += [f"{name} set by environment to {value}" for name, value in sorted(variables.items())]
            lines = (f"n0:{7 + at}:7 [0] NCCL INFO {text}\n" for at, text in enumerate(said))
            log.write_text("".join(lines) if version else "")
        played = self._play(variables, number)
        return played if isinstance(played, LaunchResult) else LaunchResult(exit_code=0, stdout=played)

    def kill(self):
        raise AssertionError("nobody is asked to end anything")


def by_side(new_over_today, *, noise=0.004):
    """Return a play in which the new side takes some ratio of today's time per size."""
    draw = random.Random(7)

    def play(variables, _number):
        ratios = new_over_today if "X" in variables else dict.fromkeys(SIZES, 1.0)
        return table({size: 20 * ratios[size] * draw.gauss(1, noise) for size in SIZES})

    return play


EQUAL = dict.fromkeys(SIZES, 1.0)


def run(tmp_path, play, *, versions=("2.28.9", "2.32.3"), **options):
    how = Comparison(directory=tmp_path, blocks=options.pop("blocks", 12))
    tuned_env = options.pop("tuned_env", (("X", "1"),))
    sides = VerifyRequest(argv=("job",), base_env=(), tuned_env=tuned_env, how=how)
    launcher = PlayedJob(play, versions)
    seen = []
    request = GateRequest(sides=sides, margin=0.02, **options)
    result = run_gate(request, launcher, environ={}, watch=lambda *launch: seen.append(launch))
    assert not list(tmp_path.iterdir())
    return result, launcher, seen


def test_equal_sides_are_not_slower(tmp_path):
    result, launcher, seen = run(tmp_path, by_side(EQUAL))
    assert result.decision is GateDecision.NOT_SLOWER
    assert [group.name for group in result.groups] == [
        "all_reduce up to 64 KiB",
        "all_reduce 64 KiB to 1 MiB",
        "all_reduce above 16 MiB",
    ]
    assert ("NCCL", "2.28.9", "2.32.3") in result.differences
    assert [order for _, order, _ in seen] == [-1, -1, *range(len(seen) - 2)]
    timed = [dict(plan.set_env)["NCCL_DEBUG"] for plan in launcher.plans[2:]]
    assert set(timed) == {"VERSION"}, "nothing is timed while NCCL logs"
    assert not any("NCCL_RUNTIME_CONNECT" in dict(plan.set_env) for plan in launcher.plans), "the job stays as it is"
    sides = [launch.side for launch in result.launches]
    assert all(set(pair) == set(Side) for pair in zip(sides[::2], sides[1::2], strict=True))


def test_small_messages_that_are_slower_alone_decide_and_faster_sides_pass(tmp_path):
    for ratios, decision in ((EQUAL | {SIZES[0]: 1.1}, "slower"), (dict.fromkeys(SIZES, 0.9), "faster")):
        result, *_ = run(tmp_path, by_side(ratios))
        assert (result.decision, result.decision.is_regression) == (decision, decision == "slower")


def test_noise_leaves_it_undecided(tmp_path):
    result, *_ = run(tmp_path, by_side(EQUAL, noise=0.2), blocks=3)
    assert result.decision is GateDecision.UNDECIDED
    assert len(result.launches) == 12
    assert "does not decide about the 2 % margin" in result.reason


def played_pairs(seed, *, slowdown, noise, count):
    """Return log ratios with noise that two sizes share, with now and then an outlier."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        shared = draw.gauss(0, noise) * (10 if draw.random() < 0.05 else 1)
        pairs.append(
            {
                ComparedCall(name="all_reduce", size_bytes=size, dtype="float"): math.log(1 + slowdown)
                + shared
                + draw.gauss(0, noise)
                for size in SIZES[:2]
            }
        )
    return pairs


def looks(seed, *, slowdown, noise, count=16):
    pairs = played_pairs(seed, slowdown=slowdown, noise=noise, count=count)
    return [decide_gate(judge_groups(pairs[:look], margin=0.02)) for look in range(6, count + 1, 2)]


def test_equal_sides_are_never_called_slower_at_any_look():
    for seed in range(60):
        assert GateDecision.SLOWER not in looks(seed, slowdown=0.0, noise=0.01 if seed % 2 else 0.05)


def test_a_slowdown_of_ten_percent_never_passes_and_is_found():
    for seed in range(30):
        decided = looks(seed, slowdown=0.1, noise=0.01)
        assert not {GateDecision.FASTER, GateDecision.NOT_SLOWER} & set(decided)
        assert decided[-1] is GateDecision.SLOWER


def test_intervals_of_more_groups_are_wider():
    pairs = played_pairs(1, slowdown=0.0, noise=0.01, count=12)
    alone = [{call: ratio for call, ratio in pair.items() if call.size_bytes == SIZES[0]} for pair in pairs]
    together, single = judge_groups(pairs, margin=0.02)[0], judge_groups(alone, margin=0.02)[0]
    assert together.ratio.low < single.ratio.low <= single.ratio.high < together.ratio.high


def fails_on_new(result):
    return lambda variables, number: result if "X" in variables else by_side(EQUAL)(variables, number)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (LaunchResult(exit_code=139, stderr="Caught signal 11"), "exit code 139"),
        (LaunchResult(exit_code=None, timed_out=True), "ended after 1800 s"),
        (LaunchResult(exit_code=0, stdout=table(EQUAL, wrong=3)), "wrong results: 3 values out of bounds"),
        (LaunchResult(exit_code=0, stdout="done"), "neither a table of nccl-tests nor step times"),
    ],
)
def test_failure_of_the_new_side_alone_is_a_regression(tmp_path, end, said):
    result, launcher, _ = run(tmp_path, fails_on_new(end))
    assert result.decision is GateDecision.FAILED
    assert result.decision.is_regression
    assert result.reason.startswith("failed in 2 of 2 launches of the new side, 0 of 1 of today's: ")
    assert said in result.reason
    assert len(launcher.plans) == 3


def test_failure_of_the_new_side_during_the_comparison_is_a_regression(tmp_path):
    def play(variables, number):
        if number > 8 and "X" in variables:
            return LaunchResult(exit_code=1, stderr="unhandled cuda error")
        return by_side(EQUAL)(variables, number)

    result, *_ = run(tmp_path, play)
    assert result.decision is GateDecision.FAILED
    assert result.to_document()["failure"] == "exit code 1\nunhandled cuda error"


@pytest.mark.parametrize("failing", [1, 9])
def test_failure_of_the_new_side_that_does_not_repeat_decides_nothing(tmp_path, failing):
    news = []

    def play(variables, number):
        if "X" in variables:
            news.append(number)
            if len(news) == failing:
                return LaunchResult(exit_code=1, stderr="link down")
        return by_side(EQUAL, noise=0.1)(variables, number)

    result, *_ = run(tmp_path, play)
    assert result.decision is GateDecision.UNDECIDED
    assert result.reason.startswith(f"failed in 1 of {failing + 1} launches of the new side, 0 of ")
    assert result.failure == "exit code 1\nlink down"


def test_failure_of_today_during_the_comparison_decides_nothing(tmp_path):
    def play(variables, number):
        if number > 8 and "X" not in variables:
            return LaunchResult(exit_code=1, stderr="link down")
        return by_side(EQUAL)(variables, number)

    result, *_ = run(tmp_path, play)
    assert result.decision is GateDecision.UNDECIDED
    assert "launches of the new side, 1 of " in result.reason


def test_failure_on_both_sides_or_today_alone_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="fails on both sides: exit code 3"):
        run(tmp_path, lambda _variables, _number: LaunchResult(exit_code=3))
    with pytest.raises(UsageError, match="fails on the side of today: exit code 3"):
        run(tmp_path, lambda v, n: by_side(EQUAL)(v, n) if "X" in v else LaunchResult(exit_code=3))


def test_launches_without_nodes_or_start_are_no_regression(tmp_path):
    with pytest.raises(NotStartedError, match="does not start: no node is free"):
        run(tmp_path, fails_on_new(LaunchResult(exit_code=1, not_started="no node is free")))
    with pytest.raises(NodesLostError):
        run(tmp_path, fails_on_new(LaunchResult(exit_code=1, lost="job 7 was preempted")))


def test_program_that_the_new_side_lacks_is_a_regression(tmp_path):
    result, *_ = run(tmp_path, fails_on_new(LaunchResult(exit_code=127, not_started="cannot start perf: no such file")))
    assert result.decision is GateDecision.FAILED
    assert "does not start: cannot start perf: no such file" in result.reason


def test_output_that_was_not_kept_is_refused(tmp_path):
    cut = LaunchResult(exit_code=0, stdout=table({SIZES[2]: 20.0}), dropped_bytes=7000)
    with pytest.raises(UsageError, match="its first 7,000 bytes are lost"):
        run(tmp_path, fails_on_new(cut))
    with pytest.raises(UsageError, match="its first 7,000 bytes are lost"):
        run(tmp_path, fails_on_new(LaunchResult(exit_code=0, stdout="words", dropped_bytes=7000)))


def test_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def fail(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(UsageError, match=r"cannot use .*: No space left on device"):
        run(tmp_path, by_side(EQUAL))


def test_job_without_nccl_is_refused_after_its_first_launch(tmp_path):
    launches = []

    def play(variables, number):
        launches.append(number)
        return by_side(EQUAL)(variables, number)

    with pytest.raises(UsageError, match="not seen on the side today") as refused:
        run(tmp_path, play, versions=("", ""))
    assert launches == [0]
    assert "state what differs, here X, with --differs" in refused.value.hint


def test_same_versions_are_refused_unless_a_difference_is_stated(tmp_path):
    same = {"versions": ("2.28.9", "2.28.9")}
    with pytest.raises(UsageError, match=r"does not differ: both sides loaded NCCL 2\.28\.9"):
        run(tmp_path, by_side(EQUAL), tuned_env=(("NCCL_ALGO", "Ring"), ("X", "1")), **same)
    result, *_ = run(tmp_path, by_side(EQUAL), stated="driver 595 after 580", **same)
    assert result.decision is GateDecision.NOT_SLOWER
    assert "difference as stated, not seen: driver 595 after 580" in result.notes


def test_versions_that_are_not_seen_are_not_claimed(tmp_path):
    result, *_ = run(tmp_path, by_side(EQUAL), versions=("", ""), stated="firmware", cluster=DGX)
    assert "NCCL version: not seen (today and new)" in result.notes
    assert result.issues == (), "the cluster's version stands for today alone"


@pytest.mark.parametrize(("versions", "side"), [(("2.28.9", ""), "new"), (("", "2.32.3"), "today")])
def test_version_of_one_side_alone_is_no_difference(tmp_path, versions, side):
    with pytest.raises(UsageError, match=f"NCCL version: not seen on the side {side}"):
        run(tmp_path, by_side(EQUAL), versions=versions)
    result, *_ = run(tmp_path, by_side(EQUAL), versions=versions, stated="firmware")
    assert result.differences == ()


def test_property_of_one_side_alone_is_noted(tmp_path):
    result, *_ = run(tmp_path, by_side(EQUAL), tuned_env=(("NCCL_ALGO", "Ring"), ("X", "1")))
    assert [name for name, *_ in result.differences] == ["NCCL"]
    assert "logged on one side alone (new): NCCL_ALGO" in result.notes


def test_named_version_that_was_not_seen_is_refused(tmp_path):
    for stated in ("", "firmware"):
        with pytest.raises(UsageError, match=r"new: NCCL 2\.29\.7 was not seen"):
            run(
                tmp_path,
                by_side(EQUAL),
                versions=("2.28.9", ""),
                expected={Side.TUNED: NcclVersion(2, 29, 7)},
                stated=stated,
            )


def test_another_version_than_named_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"new loaded NCCL 2\.32\.3, not 2\.31\.2"):
        run(tmp_path, by_side(EQUAL), expected={Side.TUNED: NcclVersion(2, 31, 2)})


def test_ranks_with_different_libraries_are_refused(tmp_path):
    both = {"versions": ("2.28.9", ("2.28.9", "2.32.3"))}
    with pytest.raises(UsageError, match=r"new: processes loaded NCCL 2\.28\.9 and 2\.32\.3"):
        run(tmp_path, by_side(EQUAL), **both)
    result, *_ = run(tmp_path, by_side(EQUAL), stated="a second framework", **both)
    assert "new: processes loaded NCCL 2.28.9 and 2.32.3" in result.notes
    with pytest.raises(UsageError, match=r"new loaded NCCL 2\.28\.9 and 2\.32\.3, not 2\.32\.3 alone"):
        run(tmp_path, by_side(EQUAL), stated="x", expected={Side.TUNED: NcclVersion(2, 32, 3)}, **both)


def test_version_that_changes_during_the_comparison_is_refused(tmp_path):
    def play(variables, number):
        text = by_side(EQUAL)(variables, number)
        return text if number < 5 or "X" not in variables else f"NCCL version 2.28.9+cuda12.8\n{text}"

    with pytest.raises(UsageError, match=r"new loaded NCCL 2\.32\.3 at first and 2\.28\.9 later"):
        run(tmp_path, play)


def test_known_issues_are_those_of_the_versions_that_were_seen(tmp_path):
    result, *_ = run(tmp_path, by_side(EQUAL), cluster=DGX)
    assert "https://github.com/NVIDIA/nccl/issues/2094" in [issue.link for issue in result.issues]
    both, *_ = run(tmp_path, by_side(EQUAL), cluster=DGX, versions=("2.28.9", ("2.28.9", "2.32.3")), stated="x")
    assert "https://github.com/NVIDIA/nccl/issues/2094" in [issue.link for issue in both.issues]
    back, *_ = run(tmp_path, by_side(EQUAL), cluster=DGX, versions=("2.32.3", "2.28.9"))
    assert "https://github.com/NVIDIA/nccl/issues/2094" not in [issue.link for issue in back.issues]
    assert any("described with NCCL" in note for note in back.notes)


def test_document_is_json_and_keeps_the_sides_apart(tmp_path):
    result, *_ = run(tmp_path, by_side(EQUAL))
    document = json.loads(json.dumps(result.to_document(), allow_nan=False))
    assert (document["seen"]["today"]["NCCL"], document["seen"]["new"]["NCCL"]) == ("2.28.9", "2.32.3")
    assert document["decision"] == "not slower"
    assert {launch["side"] for launch in document["launches"]} == {"today", "new"}


def test_call_that_only_today_measures_decides_nothing(tmp_path):
    def play(variables, number):
        return table(dict.fromkeys(SIZES if "X" not in variables else SIZES[:2], 20.0))

    result, *_ = run(tmp_path, play)
    assert [group.pairs for group in result.groups] == [len(result.launches) // 2] * 2
    assert result.decision is GateDecision.UNDECIDED
    assert result.reason == "the new side did not measure all_reduce 64 MiB, which today's side did"


def test_call_that_only_the_new_side_measures_is_noted(tmp_path):
    result, *_ = run(tmp_path, lambda v, _n: table(dict.fromkeys(SIZES if "X" in v else SIZES[:2], 20.0)))
    assert result.decision is GateDecision.NOT_SLOWER
    assert result.notes == ("not compared, measured on the new side only: all_reduce 64 MiB",)


def test_no_size_in_common_decides_nothing(tmp_path):
    other, *_ = run(tmp_path, lambda v, _n: table({SIZES["X" in v]: 20.0}))
    assert other.decision is GateDecision.UNDECIDED
    assert other.reason == "the new side did not measure all_reduce 1 KiB, which today's side did"


def without_footer(text):
    return text[: text.index("# Out of bounds")]


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (without_footer(table(EQUAL)).replace("1.00 0\n", "1.00 7\n", 1), "wrong results: all_reduce 1 KiB"),
        (table(EQUAL | {SIZES[2]: math.nan}), "no finite time: all_reduce 64 MiB"),
        (table(EQUAL | {SIZES[1]: 0.0}), "no finite time: all_reduce 512 KiB"),
        (f"{table(EQUAL)}n0: Test NCCL failure common.cu:1 'remote'\n", "n0: Test NCCL failure common.cu:1 'remote'"),
    ],
)
def test_rows_that_are_no_result_fail_the_side(tmp_path, printed, said):
    result, *_ = run(tmp_path, fails_on_new(LaunchResult(exit_code=0, stdout=printed)))
    assert result.decision is GateDecision.FAILED
    assert said in result.reason


def test_half_that_was_left_out_is_no_failure(tmp_path):
    def leave_out(text):
        return re.sub(r" \S+ 1.00 1.00 0$", " nan nan nan N/A", text, flags=re.MULTILINE)

    result, *_ = run(tmp_path, lambda variables, number: leave_out(by_side(EQUAL)(variables, number)))
    assert result.decision is GateDecision.NOT_SLOWER
    one, *_ = run(tmp_path, lambda v, number: (leave_out if "X" in v else str)(by_side(EQUAL)(v, number)))
    assert one.decision is GateDecision.UNDECIDED
    assert one.reason.startswith("the new side did not measure all_reduce 1 KiB")


SMALL = tuple(1 << power for power in range(10, 16))


@pytest.mark.parametrize("noise", [0.001, 0.04])
def test_single_size_fails_the_gate_only_if_it_is_slower_with_confidence(tmp_path, noise):
    draw = random.Random(3)

    def play(variables, _number):
        slow = {SMALL[0]: 1.06} if "X" in variables else {}
        spread = {SMALL[0]: noise}
        return table({size: 20 * slow.get(size, 1.0) * draw.gauss(1, spread.get(size, 0.001)) for size in SMALL})

    result, *_ = run(tmp_path, play)
    (group,) = result.groups
    assert (group.ratio.high < 1.02, group.worst) == (True, "1 KiB"), "on average the group is not slower"
    if noise < 0.01:
        assert result.decision is GateDecision.SLOWER
        assert re.match(r"all_reduce up to 64 KiB: 1 KiB takes \+6\.\d % time \(95 % CI \+[45]", result.reason)
        assert len(result.launches) < 48
    else:
        assert result.decision is GateDecision.NOT_SLOWER
        assert any(note.startswith("slower than the margin, but not with 95 % confidence: ") for note in result.notes)
        assert len(result.launches) == 48, "it is compared as long as it may be slower"


def test_equal_sizes_are_never_called_slower_at_any_look():
    for seed in range(30):
        draw = random.Random(seed)
        calls = [ComparedCall(name="all_reduce", size_bytes=size) for size in SMALL]
        pairs = [{call: draw.gauss(0, 0.03) for call in calls} for _ in range(24)]
        for look in range(6, 25, 3):
            assert decide_gate(judge_groups(pairs[:look], margin=0.02)) is not GateDecision.SLOWER
