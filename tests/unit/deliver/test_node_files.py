"""Files that every node of a job reads: the plugin where it can be loaded, and for whom."""

import os
from types import SimpleNamespace

import pytest

from ncclt.deliver import node_files
from ncclt.nccl.tuner_plugin import LIBRARY_NAME


@pytest.fixture
def plugin(tmp_path):
    """A file in place of the plugin, which only its owner can read."""
    path = tmp_path / "own" / LIBRARY_NAME
    path.parent.mkdir()
    path.write_bytes(b"plugin")
    path.chmod(0o600)
    return path


def test_the_plugin_is_copied_to_where_other_users_can_read_it(tmp_path, plugin):
    placed = node_files.place_plugin(tmp_path / "shared", plugin)

    assert placed.read_bytes() == b"plugin"
    assert placed.is_relative_to(tmp_path / "shared")
    assert (placed.stat().st_mode & 0o777, placed.parent.stat().st_mode & 0o777) == (0o644, 0o755)


def test_from_a_folder_mounted_noexec_no_plugin_is_loaded(tmp_path, plugin, monkeypatch):
    for flags, is_placed in ((os.ST_NOEXEC | os.ST_RDONLY, False), (os.ST_RDONLY | os.ST_NOSUID, True)):
        monkeypatch.setattr(node_files.os, "statvfs", lambda _path, flags=flags: SimpleNamespace(f_flag=flags))
        assert (node_files.place_plugin(tmp_path / "shared", plugin) != plugin) is is_placed
