"""Launches of probes: those that fail are named, and those that are done are not repeated."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ncclt.core.cluster import Cluster
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome, TrialResult
from ncclt.errors import InputError, UsageError
from ncclt.measure.simulated import SimulatedRunner, probes
from ncclt.measure.simulated.calibrate import calibrate
from ncclt.measure.simulated.observations import observed_in_table
from ncclt.measure.simulated.probes import ProbeTable, observe, probe_candidates, probe_messages

CLUSTER = Cluster(
    name="pair",
    nodes=2,
    gpus_per_node=4,
    gpu="A100",
    compute_capability=80,
    link_class="nvlink",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=4,
    nic_gbps=12.5,
    gpudirect=True,
    nccl_version="2.21.5",
)
SETTINGS = (DEFAULT, *probe_candidates(CLUSTER)[:4])
SIZES = len(probe_messages(CLUSTER))


@dataclass
class Launches:
    """A cluster as `LaunchedRunner` shows it, of which some launches fail, and the user may lose patience."""

    cluster: Cluster = CLUSTER
    simulated: bool = False
    failing: dict[Setting, TrialResult] = field(default_factory=dict)
    patience: int = 100
    interpolates: bool = False
    launched: list[Setting] = field(default_factory=list)
    name = "slurm"

    def measure(self, setting, messages, *, repeat):
        if len(self.launched) == self.patience:
            raise KeyboardInterrupt
        self.launched.append(setting)
        if setting in self.failing:
            return self.failing[setting]
        result = SimulatedRunner(self.cluster, seed=0, sigma=0).measure(setting, messages, repeat=repeat)
        first, *rest = result.measurements
        return replace(result, measurements=(replace(first, interpolated=self.interpolates), *rest))


def table(path, runner):
    return ProbeTable(path, runner, origin="test")


def test_failed_launches_are_named_and_the_others_count():
    hung = TrialResult(outcome=Outcome.TIMEOUT, detail="")
    torn = SimulatedRunner(CLUSTER, seed=0).measure(SETTINGS[2], probe_messages(CLUSTER), repeat=0)
    wrong = replace(torn, outcome=Outcome.WRONG_RESULT, detail="12 wrong elements\nmore of it")
    found = observe(Launches(failing={SETTINGS[1]: hung, SETTINGS[2]: wrong}), SETTINGS)
    assert {one.setting for one in found.seen} == {SETTINGS[0], SETTINGS[3], SETTINGS[4]}
    assert found.notes == (
        f"{SETTINGS[1].label}: timeout: ",
        f"{SETTINGS[2].label}: wrong_result: 12 wrong elements",
    )
    assert found.sources == (f"3 launches by slurm: {3 * SIZES} times",)


def test_without_one_good_forced_launch_the_ranking_is_not_calibrated():
    crashed = TrialResult(outcome=Outcome.CRASHED, detail="no algorithm/protocol available")
    found = observe(Launches(failing=dict.fromkeys(SETTINGS[1:], crashed)), SETTINGS)
    assert len(found.notes) == len(SETTINGS) - 1
    assert "ranking not" in calibrate(CLUSTER, found.seen).sentence


def test_times_between_recorded_sizes_are_left_out():
    found = observe(Launches(interpolates=True), SETTINGS)
    assert len(found.seen) == len(SETTINGS) * (SIZES - 1)
    assert found.notes == (f"{len(SETTINGS)} interpolated times are left out: they were not measured",)


def test_what_was_cut_short_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "times.csv"
    failing = {SETTINGS[1]: TrialResult(outcome=Outcome.CRASHED, detail="a node was lost")}
    first = Launches(failing=failing, patience=3)
    with pytest.raises(KeyboardInterrupt):
        observe(first, SETTINGS, table(path, first))
    again = Launches()
    found = observe(again, SETTINGS, table(path, again))
    assert again.launched == [SETTINGS[1], *SETTINGS[3:]], "what failed is tried again, what was measured is not"
    assert "2 of 5 launches were in the table already and are not repeated" in found.notes
    whole = observe(Launches(), SETTINGS)
    key = str
    for one, other in zip(sorted(found.seen, key=key), sorted(whole.seen, key=key), strict=True):
        assert one == replace(other, time_us=one.time_us)
        assert one.time_us == pytest.approx(other.time_us, rel=1e-5)
    finished = Launches(patience=0)
    assert len(observe(finished, SETTINGS, table(path, finished)).seen) == len(whole.seen)


def test_a_launch_of_which_times_are_missing_is_repeated(tmp_path):
    path = tmp_path / "times.csv"
    runner = Launches()
    observe(runner, SETTINGS, table(path, runner))
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    again = Launches()
    observe(again, SETTINGS, table(path, again))
    assert again.launched == [SETTINGS[-1]]
    assert not [s for s in SETTINGS if s not in table(path, again).known], "and a time that is there twice is no harm"


@pytest.mark.parametrize("kept", [0, 1, 20, -1, -40])
def test_a_torn_last_line_is_dropped_and_said(tmp_path, kept):
    """As `kill -9` and a full disk leave it: an empty file, a torn header, a torn row."""
    path = tmp_path / "times.csv"
    runner = Launches()
    observe(runner, SETTINGS[:2], table(path, runner))
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    again = Launches()
    found = observe(again, SETTINGS[:2], table(path, again))
    assert again.launched == list(SETTINGS[kept < 0 : 2])
    said = "the last line of times.csv was cut short and is dropped"
    assert (said in found.notes) == (kept != 0)
    assert table(path, Launches()).known.keys() == set(SETTINGS[:2])
    assert table(path, Launches()).notes == ()
    assert path.read_bytes().startswith(content.splitlines(keepends=True)[0])


def test_a_file_that_is_refused_is_not_cut(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n3,4")
    with pytest.raises(InputError, match="missing columns"):
        table(path, Launches())
    assert path.read_text() == "a,b\n1,2\n3,4"


def test_a_launch_is_written_at_once(tmp_path, monkeypatch):
    """Or another command would read half of it."""
    path, sizes = tmp_path / "times.csv", []
    monkeypatch.setattr(probes.os, "fsync", lambda _: sizes.append(path.read_bytes().count(b"\n")))
    runner = Launches()
    observe(runner, SETTINGS[:2], table(path, runner))
    assert sizes == [1 + SIZES, 1 + 2 * SIZES]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said(tmp_path):
    (tmp_path / "times.csv").symlink_to("/dev/full")
    runner = Launches()
    made = table(tmp_path / "new.csv", runner)
    made._path = tmp_path / "times.csv"
    with pytest.raises(InputError, match="No space left"):
        made.add(DEFAULT, runner.measure(DEFAULT, probe_messages(CLUSTER), repeat=0).measurements)


def test_the_table_is_one_to_calibrate_from(tmp_path):
    path = tmp_path / "times.csv"
    runner = Launches()
    observe(runner, SETTINGS, table(path, runner))
    found = observed_in_table(path, CLUSTER)
    assert len(found.seen) == len(SETTINGS) * SIZES
    assert found.sources == (f"times.csv: {len(SETTINGS) * SIZES} times",)


def test_simulated_times_stay_labelled_in_the_table_and_after_it(tmp_path):
    path = tmp_path / "times.csv"
    runner = Launches(simulated=True)
    assert "(SIMULATED)" in observe(runner, SETTINGS, table(path, runner)).sources[0]
    assert observed_in_table(path, CLUSTER).sources[0].startswith("times.csv (SIMULATED): ")
    with pytest.raises(UsageError, match="is_simulated is True, and False for these probes"):
        table(path, Launches())


@pytest.mark.parametrize(
    "change", [{"nccl_version": "2.19.3"}, {"nodes": 4}, {"gpu": "H100"}, {"gpus_per_node": 2}, {"name": "other"}]
)
def test_times_of_something_else_are_refused(tmp_path, change):
    path = tmp_path / "times.csv"
    runner = Launches()
    observe(runner, SETTINGS[:1], table(path, runner))
    with pytest.raises(UsageError, match=r"times\.csv, line 2: .* for these probes"):
        table(path, Launches(cluster=replace(CLUSTER, **change)))


def test_a_table_that_cannot_be_read_or_written_is_said(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        observe(Launches(), SETTINGS, table(tmp_path / "nowhere" / "times.csv", Launches()))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="missing columns"):
        table(tmp_path / "other.csv", Launches())


def test_an_empty_table_is_said(tmp_path):
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InputError, match=r"empty\.csv is empty"):
        observed_in_table(tmp_path / "empty.csv", CLUSTER)
