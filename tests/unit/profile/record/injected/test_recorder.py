"""Recording in a training process, with PyTorch itself and without a launcher."""

import json
import warnings
from types import SimpleNamespace

import pytest

from ncclt.profile.record.injected.recorder import Recorder

torch = pytest.importorskip("torch")
ORIGINALS = (
    torch.autograd.backward,
    torch.amp.grad_scaler.GradScaler.step,
    torch.autograd.profiler.profile._prepare_trace,
)


class Job:
    """A recorder whose hook is called by the test in PyTorch's place."""

    def __init__(self, folder, *, warmup=3, steps=2, stop_after=False, **more):
        self.folder = folder
        for name in ("inject", "ranks", "traces", "nccl"):
            (folder / name).mkdir()
        plan = {"warmup": warmup, "steps": steps, "stop_after": stop_after, **more}
        (folder / "inject" / "recording.json").write_text(json.dumps(plan))
        self.recorder = Recorder(str(folder))
        registered = []
        self.recorder.attach(SimpleNamespace(register_optimizer_step_post_hook=registered.append))
        (self.hook,) = registered

    @property
    def journal(self):
        """The facts as they lie on disk."""
        (path,) = (self.folder / "ranks").glob("*.json")
        return json.loads(path.read_text())

    @property
    def recorded_steps(self):
        """The steps that the only trace marks, None where there is no trace."""
        traces = list((self.folder / "traces").iterdir())
        if not traces:
            return None
        assert traces[0].suffix == ".json"
        names = [event.get("name", "") for event in json.loads(traces[0].read_text())["traceEvents"]]
        return sum(name.startswith("ProfilerStep#") for name in names)

    def end(self):
        """End the program."""
        self.recorder._at_exit()


class Training:
    """A model of one parameter."""

    def __init__(self, hook):
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.optimizer.register_step_post_hook(hook)

    def backward(self):
        (self.weight * 2).sum().backward()

    def step(self, times=1):
        for _ in range(times):
            self.backward()
            self.optimizer.step()


@pytest.fixture
def job(tmp_path):
    """A job of three steps of warm-up and two recorded ones; PyTorch is given back as it was."""
    made = Job(tmp_path)
    yield made
    made.recorder._end_watching()
    made.end()
    assert _patched() == ORIGINALS
    assert not torch._C._autograd._profiler_enabled()


def _patched():
    return (
        torch.autograd.backward,
        torch.amp.grad_scaler.GradScaler.step,
        torch.autograd.profiler.profile._prepare_trace,
    )


def test_window_is_recorded_once_and_pytorch_given_back(job):
    training = Training(job.hook)
    training.step(4)
    assert job.journal["state"] == "recording"
    training.step(10)
    facts = job.journal
    assert (facts["state"], len(facts["inside_s"]), facts["failures"]) == ("recorded", 2, [])
    assert (len(facts["inside_s"]), len(facts["outside_s"])) == (2, 2)
    assert facts["steps_seen"] == 8
    assert facts["write_s"] > 0
    assert job.recorded_steps == 2
    assert _patched() == ORIGINALS


def test_program_that_ends_inside_the_window_leaves_complete_steps(job):
    training = Training(job.hook)
    training.step(4)
    training.backward()
    job.end()
    assert (job.journal["state"], len(job.journal["inside_s"])) == ("cut short", 1)
    assert job.recorded_steps == 1


@pytest.mark.parametrize("steps", [0, 3])
def test_program_that_ends_before_the_window_leaves_no_trace(job, steps):
    training = Training(job.hook)
    training.step(steps)
    job.end()
    assert (job.recorded_steps, job.journal["steps_seen"], job.journal["failures"]) == (None, steps, [])


def test_of_two_optimizers_the_first_counts_until_it_is_gone(job):
    first, second = Training(job.hook), Training(job.hook)
    first.step()
    second.step()
    second.step()
    first.step()
    assert job.recorder._steps == 2
    del first
    second.step()
    assert job.recorder._steps == 3


def test_a_step_in_several_parts_counts_once(job):
    """ZeRO optimizers call the step of theirs once per parameter group."""
    training = Training(job.hook)
    for _ in range(4):
        training.step()
        training.optimizer.step()
        training.optimizer.step()
    # The first step is not known to have had a backward pass; from then on parts are told from steps.
    assert job.recorder._steps == 6
    before = job.recorder._steps
    training.step()
    training.optimizer.step()
    assert job.recorder._steps == before + 1


def test_steps_without_any_visible_backward_all_count(job):
    training = Training(job.hook)
    training.weight.grad = torch.ones(3)
    for _ in range(3):
        training.optimizer.step()
    assert job.recorder._steps == 3


def test_accumulated_gradients_are_one_step(job):
    training = Training(job.hook)
    for _ in range(3):
        for _ in range(4):
            training.backward()
        training.step()
    assert job.recorder._steps == 3


def test_step_that_a_gradient_scaler_skips_counts(job):
    training = Training(job.hook)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (1.0, 1.0, float("inf"), 1.0):
        scaler.scale((training.weight * factor).sum()).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
    assert job.recorder._steps == 4
    assert scaler.get_scale() == 2.0


def test_profiler_of_the_program_has_the_right_of_way(job):
    training = Training(job.hook)
    training.step(4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        training.step()
    assert len(theirs.events()) > 0
    training.step()
    assert job.journal["state"] == "failed"
    assert "a profiler of its own" in job.journal["failures"][0]
    assert job.recorded_steps is None


@pytest.mark.parametrize("begun_before", [True, False])
def test_no_recording_while_the_program_profiles(job, begun_before):
    training = Training(job.hook)
    if not begun_before:
        training.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        training.step(6)
    assert "at the same time" in job.journal["failures"][0]
    assert len(theirs.events()) > 0


def test_profiler_that_has_ended_is_no_obstacle(job):
    training = Training(job.hook)
    training.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass
    training.step(6)
    assert job.recorded_steps == 2


def test_failure_of_the_recording_never_reaches_the_training(job):
    training = Training(job.hook)
    (job.folder / "traces").rmdir()
    training.step(9)
    assert job.journal["state"] == "failed"
    assert job.journal["failures"]


def test_job_is_ended_after_the_window_however_often_it_refuses(tmp_path, monkeypatch):
    job = Job(tmp_path, stop_after=True)
    training = Training(job.hook)
    training.step(4)
    with pytest.raises(SystemExit) as caught:
        training.step()
    assert caught.value.code == 0
    assert job.recorded_steps == 2
    assert _patched() == ORIGINALS
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    training.step()
    assert ended == [0]


def test_log_of_nccl_goes_nowhere_behind_the_window(job):
    with (job.folder / "nccl" / "host.1.log").open("w") as log, (job.folder / "other").open("w") as other:
        print("before", file=log, flush=True)
        training = Training(job.hook)
        training.step(5)
        for file in (log, other):
            print("behind", file=file, flush=True)
    assert (job.folder / "nccl" / "host.1.log").read_text() == "before\n"
    assert (job.folder / "other").read_text() == "behind\n"


def test_forked_child_records_nothing(job, monkeypatch):
    training = Training(job.hook)
    training.step()
    monkeypatch.setattr("os.getpid", lambda: 0)
    training.step(9)
    job.end()
    monkeypatch.undo()
    assert (job.recorder._steps, job.recorded_steps) == (1, None)


def test_forked_child_that_ends_leaves_the_parents_files_alone(job, monkeypatch):
    """Exit handlers run in workers of a data loader, too."""
    training = Training(job.hook)
    training.step(4)
    (path,) = (job.folder / "ranks").iterdir()
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 0)
        job.end()
    assert not path.exists()
    assert job.recorded_steps is None
    training.step()
    assert job.recorded_steps == 2


def test_nothing_is_printed(job, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        training = Training(job.hook)
        training.step(9)
    out, err = capfd.readouterr()
    # Kineto's own stages are silenced by the environment of the plan, which this process does not have.
    assert (out, [line for line in err.splitlines() if "ActivityProfiler" not in line]) == ("", [])


def test_times_alone_need_no_profiler_and_leave_the_programs_own_alone(tmp_path):
    job = Job(tmp_path, times_only=True)
    training = Training(job.hook)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        training.step(4)
        assert not list((tmp_path / "traces").iterdir())
        training.step()
    job.recorder._end_watching()
    job.end()
    facts = job.journal
    assert (facts["state"], len(facts["inside_s"]), facts["failures"]) == ("recorded", 2, [])
    assert len(facts["inside_s"]) == 2
    assert len(theirs.events()) > 0
    assert [path.stat().st_size for path in (tmp_path / "traces").iterdir()] == [0]
    assert _patched() == ORIGINALS


def test_times_that_are_cut_short_tell_so(tmp_path):
    job = Job(tmp_path, times_only=True, steps=5)
    training = Training(job.hook)
    training.step(5)
    job.recorder._end_watching()
    job.end()
    assert (job.journal["state"], len(job.journal["inside_s"])) == ("cut short", 2)
    assert not list((tmp_path / "traces").iterdir())


def test_counting_sees_every_step_and_records_none(tmp_path):
    job = Job(tmp_path, count_only=True)
    training = Training(job.hook)
    training.step(40)
    job.end()
    assert (job.journal["steps_seen"], job.journal["state"], job.journal["failures"]) == (40, "loaded", [])
    assert job.recorded_steps is None
    job.recorder._end_watching()
    assert _patched() == ORIGINALS
