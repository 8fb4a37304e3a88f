"""Every public table with forced settings: it loads, or the refusal is the right one."""

import csv
from pathlib import Path

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome
from ncclt.errors import LandscapeError
from ncclt.measure.simulated import ReplayRunner, load_landscape

pytestmark = pytest.mark.shared

L40S = "l40s_a100_cs244c"
SLICE = {"gpus": "4", "nccl_version": "2.18.3"}
LOADS = [
    ("mi355x_rccl_2node_allreduce_grid", {}, 54, 16),
    ("rtx5090_single_gpu_socket_loopback", {}, 7, 1),
    (L40S, {"system": "L40S*", "gpus": "2"}, 5, 2),
    (L40S, {"system": "L40S*", "gpus": "4"}, 5, 4),
    (L40S, {"system": "L40S*", "gpus": "4", "other_env": "GPU compute contention high"}, 5, 4),
    ("h100_nvswitch_waynehacking8", SLICE, 6, 4),
    ("rtx4090x4_shm_and_k500sm_channels", {"system": "4x RTX 4090*"}, 4, 4),
    ("rtx4090x4_shm_and_k500sm_channels", {"nccl_version": "RCCL*"}, 4, 4),
    ("v100class_8gpu_cubemesh_route_sweep", {}, 7, 8),
    ("a100_modal_multinode_iterproxy", {"nodes": "1", "other_env": "sequential*"}, 6, 8),
]
REFUSED = [
    (L40S, {}, "3 landscapes"),
    (L40S, {"system": "A100*"}, "only the default"),
    ("h100_nvswitch_waynehacking8", {}, "6 landscapes"),
    ("rtx4090x4_shm_and_k500sm_channels", {}, "2 landscapes"),
    ("a100_modal_multinode_iterproxy", {}, "3 landscapes"),
    ("a100_8gpu_modal_channel_sweep_iterproxy", {"other_env": "overlap | metric=iteration time (matmul+allreduce)"},
     "NCCL's own choice"),
    ("gb10_dgxspark4_ring_tuning", {"proto": "LL"}, "NCCL's own choice"),
    ("mi300x_cpx_rccl_sixway", {}, "3 conditions"),
    ("rtxpro6000_pcie", {}, "landscapes"),
    ("github_issue_excerpts", {}, "landscapes"),
    ("a100_8gpu_superbench", {}, "only the default"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "where", "settings", "world_size"), LOADS)
def test_it_loads_and_replays(shared_data, name, where, settings, world_size):
    landscape = load_landscape(shared_data / "measurements" / f"{name}.csv", where)
    assert len(landscape.settings()) == settings
    assert landscape.cluster.world_size == world_size
    collective, _ = next(key for key in landscape.curves if key[1] == DEFAULT)
    size = landscape.curves[collective, DEFAULT][0][0]
    message = Message(collective=collective, dtype="float32", size_bytes=size)
    assert ReplayRunner(landscape, seed=0).measure(DEFAULT, [message], repeat=0).outcome is Outcome.OK


@pytest.mark.parametrize(("name", "where", "words"), REFUSED)
def test_it_is_refused_in_words(shared_data, name, where, words):
    with pytest.raises(LandscapeError, match=words) as caught:
        load_landscape(shared_data / "measurements" / f"{name}.csv", where)
    assert caught.value.hint


def _refusal(path: Path) -> str | None:
    """Return the hint of the refusal, None where the table loads; any other exception is a failure of the test."""
    try:
        load_landscape(path, {})
    except LandscapeError as error:
        return error.hint
    return None


def test_every_table_gives_a_landscape_or_a_refusal_with_a_hint(shared_data):
    tables = sorted((shared_data / "measurements").glob("*.csv"))
    refusals = {table.name: _refusal(table) for table in tables}
    assert None in refusals.values()
    assert "" not in refusals.values()


def test_a_replayed_time_is_the_figure_of_the_table(shared_data):
    path = shared_data / "measurements" / "mi355x_rccl_2node_allreduce_grid.csv"
    landscape = load_landscape(path, {})
    with path.open() as file:
        wanted = next(r for r in csv.DictReader(file) if r["algo"] == "Tree" and r["nchannels"] == "8")
    setting = next(
        s for s in landscape.settings()
        if s.algorithm == "tree" and s.channels == 8 and s.protocol == wanted["proto"].lower()
    )  # fmt: skip
    message = Message(collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=int(wanted["size_bytes"]))
    assert landscape.time_samples(setting, message) == (float(wanted["time_us"]),)
