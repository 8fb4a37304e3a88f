"""What an H100 left behind on 2026-11-22 (docs/measurements): one training, seen by four sources at once.

Two ranks on one GPU, NCCL 2.32.3, PyTorch 2.11: a DistributedDataParallel model of 14,164,992 float32 parameters.
"""

from pathlib import Path

import pytest

from ncclt.core.message import Collective
from ncclt.profile import read_workload

SEEN = Path(__file__).parents[1] / "golden" / "h100"
GRADIENTS = {9_443_328, 18_886_656, 28_329_984}
"""Bytes of the three buckets: six layers of 1536 x 1536 weights and 1536 biases in float32."""


@pytest.mark.parametrize(
    ("name", "per_step"), [("kineto.0.json.gz", 1), ("et.0.json.gz", 1), ("fr.0.pkl", 7), ("nccl.0.log", 7)]
)
def test_four_sources_of_one_job_see_the_same_buckets(name, per_step):
    found = read_workload([SEEN / name], name="h100")
    calls = {
        c.message.size_bytes: c.calls_per_step
        for c in found.messages
        if c.message.collective is Collective.ALL_REDUCE and c.message.size_bytes in GRADIENTS
    }
    assert calls == dict.fromkeys(GRADIENTS, per_step)
    assert {c.message.dtype for c in found.messages if c.message.size_bytes in GRADIENTS} == {"float32"}


def test_two_thirds_of_the_median_step_were_exposed():
    found = read_workload([SEEN / "kineto.0.json.gz"], name="h100")
    assert found.exposed_us / found.step_time_us == pytest.approx(0.704, abs=0.001)
