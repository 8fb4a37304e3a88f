"""What autotune decides between its stages."""

from dataclasses import replace

import pytest

from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.verification import Verification
from ncclt.errors import StudyStoppedError, UsageError
from ncclt.launch.local import LocalLauncher
from ncclt.measure.redact import words_without_secrets
from ncclt.measure.target import Target
from ncclt.pipeline.autotune import (
    build_job_name,
    choose_target,
    describe_ceiling,
    explain_low_ceiling,
    explain_no_comparison,
    find_last_comparison,
    record_job,
)
from ncclt.prove.comparison import Comparison
from ncclt.testing.samples import sample_recommendation, sample_workload

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=4", "train.py")


def _name(tmp_path, argv=TORCHRUN, **environ):
    return build_job_name(argv, environ=environ, folder=tmp_path)


def test_another_job_has_another_name(tmp_path):
    (tmp_path / "train.py").write_text("first")
    other = tmp_path / "other"
    other.mkdir()
    first = _name(tmp_path)
    assert first == _name(tmp_path, HOME="/elsewhere")
    assert first.startswith("train-")
    assert first != _name(tmp_path, (*TORCHRUN, "--lr=1"))
    assert first != _name(other), "a script of the same name elsewhere"
    mpi = ("mpirun", "-n", "8", "python", "train.py")
    assert _name(tmp_path, mpi, SLURM_NNODES="2") == _name(tmp_path, mpi, SLURM_NNODES="2")
    srun = ("srun", "python", "train.py")
    assert _name(tmp_path, srun, SLURM_NNODES="2") != _name(tmp_path, srun, SLURM_NNODES="4"), "it runs on more nodes"
    (tmp_path / "train.py").write_text("second")
    assert first != _name(tmp_path)


def test_names_without_a_script(tmp_path, subtests):
    cases = [(("bash", "-c", "x"), "bash"), (("./a b!",), "a-b"), (("..",), "job"), (("gone.py",), "gone.py")]
    for argv, stem in cases:
        with subtests.test(argv=argv, stem=stem):
            assert _name(tmp_path, argv).rpartition("-")[0] == stem


def _target(target, argv=TORCHRUN, *, gpus=True, **environ):
    return choose_target(target, argv, environ=environ, gpus_visible=lambda: gpus)


def test_the_job_says_its_shape_and_brings_pytorch():
    found = _target(Target())
    assert (found.launcher, found.nodes, found.gpus_per_node) == ("torchrun", 1, 4)
    assert found.reason.endswith("the job uses PyTorch")
    assert _target(Target(gpus_per_node=2)).gpus_per_node == 2
    assert _target(Target(launcher="local")).launcher == "local", "as asked"
    assert _target(Target(benchmark="nccl_tests")).launcher == "local"


def test_recordings_and_models_keep_their_own_shape():
    found = _target(Target(cluster="leonardo", launcher="simulate"), gpus=False)
    assert (found.launcher, found.nodes, found.gpus_per_node) == ("simulate", None, None)
    assert _target(Target(cluster="leonardo", launcher="simulate"), (), gpus=False) == found


def test_what_cannot_be_tuned_here_is_refused(subtests):
    cases = [
        (Target(), TORCHRUN, False, {}, "cannot measure here"),
        (Target(cluster="leonardo"), TORCHRUN, False, {}, "cannot measure here"),
        (Target(launcher="slurm"), TORCHRUN, False, {}, "not a Slurm allocation"),
        (Target(), ("torchrun", "--nnodes=2", "train.py"), True, {}, "on this node only, and the job has 2 nodes"),
    ]
    for target, argv, gpus, environ, said in cases:
        with subtests.test(target=target, argv=argv, gpus=gpus):
            with pytest.raises(UsageError, match=said) as caught:
                _target(target, argv, gpus=gpus, **environ)
            assert caught.value.hint


def test_launchers_of_all_nodes_may_start_several():
    argv = ("srun", "torchrun", "--nnodes=2", "--nproc-per-node=4", "train.py")
    found = _target(Target(launcher="slurm"), argv, SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="2")
    assert (found.nodes, found.gpus_per_node) == (2, 4)


def test_ceiling_is_the_exposed_share_of_the_step():
    unknown = sample_workload()
    assert "unknown" in describe_ceiling(unknown)
    assert explain_low_ceiling(unknown, min_effect=0.02) == ""
    known = replace(unknown, step_time_us=200_000.0, exposed_us=11_800.0)
    assert describe_ceiling(known) == (
        "Upper bound on savings: 11.8 ms of 200 ms per step (5.9 % is exposed communication)"
    )
    assert explain_low_ceiling(known, min_effect=0.05) == ""
    assert explain_low_ceiling(known, min_effect=0.07).endswith(
        "steps would be 6.3 % faster, less than the 7 % threshold"
    )
    assert explain_low_ceiling(replace(known, exposed_us=0.0), min_effect=0.02)
    assert explain_low_ceiling(replace(known, exposed_us=300_000.0), min_effect=0.02) == ""


def test_step_times_are_compared_where_a_measured_gain_meets_a_job():
    tuned = replace(sample_recommendation("a"), simulated=False, launcher="torchrun")
    assert explain_no_comparison(tuned, TORCHRUN) == ""
    assert "after --" in explain_no_comparison(tuned, ())
    for launcher in ("simulate", "replay"):
        unmeasured = replace(tuned, simulated=launcher == "simulate", launcher=launcher)
        assert "on 2 x 4 real GPUs" in explain_no_comparison(unmeasured, TORCHRUN)
    kept = PolicyVerdict(
        policy=tuned.table.policy, verdict=replace(tuned.table.verdict, decision=Decision.KEEP_DEFAULT)
    )
    assert "both sides" in explain_no_comparison(replace(tuned, table=kept), TORCHRUN)
    assert explain_no_comparison(replace(tuned, table=kept, variables=tuned.table), TORCHRUN) == ""


def test_a_comparison_counts_where_it_was_made_in_the_same_way(store):
    recommendation, how, site = sample_recommendation("a"), Comparison(min_effect=0.03), {"NCCL_IB_HCA": "mlx5_0"}
    argv = (*TORCHRUN, "--api-key", "verysecret")
    made = Verification(
        id="v1",
        cluster="pair",
        model="toy",
        recommendation="a",
        argv=words_without_secrets(argv),
        base_env=(),
        tuned_env=(("X", "1"),),
        removed_env=(),
        site_variables=tuple(site.items()),
        warmup=how.warmup,
        steps=how.steps,
        ranks=2,
        hosts=1,
        verdict=replace(recommendation.table.verdict, min_effect=0.03),
        launches=(),
        notes=(),
        created="t",
    )

    def find(**changes):
        asked = {"recommendation": recommendation, "argv": argv, "how": how, "base_env": {}, "environ": site} | changes
        return find_last_comparison(store, **asked)

    assert "verysecret" not in made.argv
    assert find() is None
    store.records.add_verification(replace(made, id="v0", base_argv=("old",)))
    store.records.add_verification(made)
    assert find() == made
    changes = [
        *({"how": replace(how, **other)} for other in ({"steps": 7}, {"warmup": 7}, {"min_effect": 0.01})),
        {"argv": TORCHRUN},
        {"recommendation": sample_recommendation("b")},
        {"base_env": {"NCCL_PROTO": "LL"}},
        *({"environ": environ} for environ in ({}, {"NCCL_IB_HCA": "mlx5_1"})),
    ]
    for change in changes:
        assert find(**change) is None, change


def test_a_job_that_cannot_be_recorded_leaves_nothing(tmp_path, subtests):
    cases = [
        (("sh", "-c", "echo out of luck >&2; exit 3"), "exit code 3\nout of luck"),
        (("true",), "nothing was recorded: "),
        (("/nonexistent/train",), "/nonexistent/train"),
    ]
    for argv, said in cases:
        with subtests.test(argv=argv, said=said):
            how = Comparison(directory=tmp_path)
            with pytest.raises(StudyStoppedError) as caught:
                record_job(argv, name="mine", steps=3, how=how, launcher=LocalLauncher(), environ={})
            assert said in caught.value.message
            assert not list(tmp_path.iterdir())
