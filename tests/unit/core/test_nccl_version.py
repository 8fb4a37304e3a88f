"""NCCL's version numbers as people and NCCL itself write them."""

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9", NcclVersion(2, 28, 9)),
        ("2.28", NcclVersion(2, 28)),
        (" v2.28.9-1 ", NcclVersion(2, 28, 9)),
        ("2.28.9+cuda13.0", NcclVersion(2, 28, 9)),
        ("22809", NcclVersion(2, 28, 9)),
        ("2708", NcclVersion(2, 7, 8)),
    ],
)
def test_a_version_is_read_however_it_is_written(text, version):
    assert NcclVersion.parse(text) == version
    assert NcclVersion.parse(str(version)) == version


@pytest.mark.parametrize("text", ["", "2", "228", "2.x", "two", "2.28.9.1", "1234567"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(UsageError, match="is not an NCCL version"):
        NcclVersion.parse(text)
