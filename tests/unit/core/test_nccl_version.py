"""NCCL's version numbers as people and NCCL itself write them."""

import pytest

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError


def test_a_version_is_read_however_it_is_written(subtests):
    for text, version in [
        ("2.28.9", NcclVersion(2, 28, 9)),
        ("2.28", NcclVersion(2, 28)),
        (" v2.28.9-1 ", NcclVersion(2, 28, 9)),
        ("2.28.9+cuda13.0", NcclVersion(2, 28, 9)),
        ("22809", NcclVersion(2, 28, 9)),
        ("2708", NcclVersion(2, 7, 8)),
    ]:
        with subtests.test(text=text, version=version):
            assert NcclVersion.parse(text) == version
            assert NcclVersion.parse(str(version)) == version


def test_what_is_no_version_is_refused(subtests):
    for text in ["", "2", "228", "2.x", "two", "2.28.9.1", "1234567"]:
        with subtests.test(text=text), pytest.raises(UsageError, match="is not an NCCL version"):
            NcclVersion.parse(text)
