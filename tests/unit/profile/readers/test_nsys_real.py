"""Exports that nobody here made: none holds sizes, and each is refused for its own reason."""

import pytest

from ncclt.errors import TraceError

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("file", ["healthy_1pct", "mock"])
def test_export_without_nccl_says_so(read_traces, file):
    """One GPU, or compute alone."""
    with pytest.raises(TraceError, match=rf"no NCCL in {file}\.sqlite: not one NCCL kernel or call"):
        read_traces(f"nsys/{file}.sqlite")


def test_export_without_payloads_names_what_was_seen_and_the_command(read_traces, extracted):
    """All counts of the independent extractor are in the message, and the command is whole."""
    with pytest.raises(
        TraceError, match="INCLUDE_BLOBS=false, INCLUDE_JSON=false; NCCL kernels: SendRecv x62"
    ) as caught:
        read_traces("nsys/mfu_2gpu_after.sqlite")
    for row in extracted["nsys/mfu_2gpu_after.sqlite"]:
        assert f"{row['collective']} x{row['calls']}" in caught.value.message
    assert "nsys export --type sqlite --include-blobs=true" in caught.value.hint
    assert caught.value.hint.endswith("mfu_h1002_nsys_postfix.nsys-rep")
