"""The key of the service, from a variable or a file."""

import os

import pytest

from ncclt.deliver.answer import api_key
from ncclt.errors import UsageError


def test_the_variable_goes_before_the_file(tmp_path):
    (tmp_path / "key").write_text("ncclt_file\n")
    file = {"NCCLT_API_KEY_FILE": str(tmp_path / "key")}
    assert api_key({}) is None
    assert api_key(file) == "ncclt_file"
    assert api_key({**file, "NCCLT_API_KEY": "ncclt_variable"}) == "ncclt_variable"
    (tmp_path / "link").symlink_to(tmp_path / "key")  # as Kubernetes mounts secrets
    assert api_key({"NCCLT_API_KEY_FILE": str(tmp_path / "link")}) == "ncclt_file"


@pytest.mark.parametrize("content", ["", "two keys", "a\nb", "\u00fc", "x" * 2000])
def test_a_file_that_holds_no_key_is_refused(tmp_path, content):
    (tmp_path / "key").write_text(content)
    with pytest.raises(UsageError, match="does not hold a key"):
        api_key({"NCCLT_API_KEY_FILE": str(tmp_path / "key")})


def test_a_file_that_cannot_be_read_is_named_and_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe"):
        with pytest.raises(UsageError, match="NCCLT_API_KEY_FILE"):
            api_key({"NCCLT_API_KEY_FILE": str(tmp_path / name)})
    with pytest.raises(UsageError, match="cannot be read"):
        api_key({"NCCLT_API_KEY_FILE": "a\0b"})
