"""What is loaded from a folder is this user's or root's, and no other user can change it."""

import os

import pytest

from ncclt.client.trust import UntrustedError, open_trusted, read_trusted, require_trusted_folder

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


def is_trusted(path):
    try:
        return read_trusted(path, most_bytes=100) == b"content"
    except UntrustedError:
        return False


def test_own_file_in_an_own_folder_is_read(file):
    assert is_trusted(file)
    require_trusted_folder(file.parent)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_file_that_others_can_write_is_refused(file, mode):
    file.chmod(mode)
    assert not is_trusted(file)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("place", ["folder", "above"])
def test_folder_that_others_can_write_is_refused_wherever_it_is_on_the_way(file, mode, place):
    {"folder": file.parent, "above": file.parent.parent}[place].chmod(mode)
    assert not is_trusted(file)


def test_own_entry_of_a_sticky_folder_is_trusted(file):
    file.parent.chmod(0o1777)
    assert is_trusted(file)


@root_only
def test_file_of_another_user_is_refused_even_in_a_sticky_folder(file):
    file.parent.chmod(0o1777)
    os.chown(file, 4711, 4711)
    assert not is_trusted(file)


@root_only
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_folder_of_another_user_is_refused(file, mode):
    file.parent.chmod(mode)
    os.chown(file.parent, 4711, 4711)
    assert not is_trusted(file)


def test_what_is_checked_is_what_is_read(file, tmp_path):
    """Somebody who replaces the file after the check gets nothing read: the descriptor is of the first one."""
    with open_trusted(file) as descriptor:
        other = tmp_path / "other"
        other.write_bytes(b"evil")
        other.replace(file)
        assert os.read(descriptor, 100) == b"content"


def test_link_leads_to_a_file_that_is_checked(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(file)
    assert is_trusted(link)
    with pytest.raises(OSError, match="symbolic links"), open_trusted(link, follow=False):
        pass
    file.chmod(0o666)
    assert not is_trusted(link)


def test_pipe_and_folder_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert not is_trusted(tmp_path / "pipe")
    assert not is_trusted(tmp_path)


def test_long_file_is_refused(file):
    with pytest.raises(UntrustedError, match="more than 3 bytes"):
        read_trusted(file, most_bytes=3)
