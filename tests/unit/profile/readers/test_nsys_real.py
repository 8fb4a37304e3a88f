"""Exports that nobody here made: none holds sizes, and each is refused for its own reason."""

import json

import pytest

from ncclt.errors import TraceError
from ncclt.profile import read_workload

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("file", ["healthy_1pct", "mock"])
def test_export_without_nccl_says_so(shared_data, file):
    """One GPU, or compute alone."""
    path = shared_data / "traces" / "nsys" / f"{file}.sqlite"
    with pytest.raises(TraceError, match=rf"no NCCL in {file}\.sqlite: not one NCCL kernel or call"):
        read_workload([path], name="real")


def test_export_without_payloads_names_what_was_seen_and_the_command(shared_data):
    """All counts of the independent extractor are in the message, and the command is whole."""
    traces = shared_data / "traces"
    expected = json.loads((traces / "expected.json").read_text())["nsys/mfu_2gpu_after.sqlite"]
    with pytest.raises(
        TraceError, match="INCLUDE_BLOBS=false, INCLUDE_JSON=false; NCCL kernels: SendRecv x62"
    ) as caught:
        read_workload([traces / "nsys" / "mfu_2gpu_after.sqlite"], name="real")
    for row in expected["messages"]:
        assert f"{row['collective']} x{row['calls']}" in caught.value.message
    assert "nsys export --type sqlite --include-blobs=true" in caught.value.hint
    assert caught.value.hint.endswith("mfu_h1002_nsys_postfix.nsys-rep")


def test_every_export_is_covered(shared_data):
    """No file of this kind that lies there goes untested."""
    there = {path.name for path in (shared_data / "traces" / "nsys").iterdir()}
    assert there == {"healthy_1pct.sqlite", "mock.sqlite", "mfu_2gpu_after.sqlite"}
