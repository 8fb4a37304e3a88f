"""`ncclt admin keys`: the secret is printed once, and only its hash is kept."""

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from ncclt.cli.keys import app
from ncclt.core.api_key import hash_secret
from ncclt.errors import NotFoundError, UsageError


@pytest.fixture
def call(command):
    return partial(command.call, app)


def test_a_key_is_created_listed_and_revoked(call, command):
    secret = call("create", "--role", "env", "--cluster", "leonardo", "--note", "job starts").strip()
    (key,) = json.loads(call("list", "--json"))["keys"]
    assert (key["role"], key["clusters"], key["note"], key["revoked"]) == ("env", ["leonardo"], "job starts", "")
    assert key["expires"][:4] > key["created"][:4]
    assert list(command.store.keys.find()) == [hash_secret(secret)]
    assert secret.encode() not in command.store.path.read_bytes()
    call("revoke", key["id"])
    assert "no longer valid" in call("list")
    assert json.loads(call("list", "--json"))["keys"][0]["revoked"]


def test_a_key_may_be_kept_for_ever(call):
    call("create", "--expires", "never")
    assert json.loads(call("list", "--json"))["keys"][0]["expires"] == ""


@pytest.mark.parametrize(
    "words", [("--expires", "0"), ("--expires", "soon"), ("--note", "x" * 201), ("--note", "a\nb")]
)
def test_what_makes_no_sense_is_refused_and_nothing_is_stored(call, command, words):
    with pytest.raises(UsageError):
        call("create", *words)
    assert command.store.keys.find() == {}


def test_no_key_is_revoked_in_a_store_that_is_not_there(tmp_path):
    url = f"sqlite:///{tmp_path}/typo.db"
    done = CliRunner(env={"NCCLT_STORAGE": url}).invoke(app, ["revoke", "x"], standalone_mode=False)
    assert "there is no store" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_unknown_clusters_and_keys_are_named(call, command):
    with pytest.raises(NotFoundError, match="leonrado"):
        call("create", "--cluster", "leonrado")
    with pytest.raises(NotFoundError, match="abc"):
        call("revoke", "abc")
    assert command.store.keys.find() == {}
