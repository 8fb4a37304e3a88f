"""`ncclt serve` says in a sentence that it cannot listen."""

import socket

import pytest
import typer
from typer.main import get_command

from ncclt.cli.serve import app, serve
from ncclt.core.api_key import Role, hash_secret, new_secret
from ncclt.errors import UsageError
from ncclt.store import open_store
from ncclt_api.app import serve as run_service

CONTEXT = typer.Context(get_command(app))


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCLT_STORAGE", f"sqlite:///{tmp_path / 'store.db'}")


def test_a_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            serve(CONTEXT, port=port)


def test_an_address_of_another_machine_is_refused():
    # 192.0.2.0/24 belongs to nobody (RFC 5737).
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        serve(CONTEXT, host="192.0.2.1", port=0)


@pytest.mark.parametrize("option", ["public_url", "optuna_dashboard_url"])
def test_an_address_that_is_no_web_address_is_refused(option):
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} must be an http or https address, not 'ftp:x'"):
        serve(CONTEXT, **{option: "ftp:x"})


@pytest.fixture
def started(monkeypatch):
    """Serve as the command does, up to where the service takes over."""
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("ncclt.cli.serve._can_listen", lambda *_: None)

    def call(url, file):
        monkeypatch.setenv("NCCLT_STORAGE", url)
        serve(CONTEXT, host="0.0.0.0", first_key=file)

    return call


def test_first_key_is_made_once_and_opens_the_service(tmp_path, started, capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    url, file = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "first-key"
    open_store(url).close()
    started(url, None)
    with pytest.raises(UsageError, match="without keys"):
        run_service(url, host="0.0.0.0")

    for _ in range(2):
        started(url, file)
    run_service(url, host="0.0.0.0")
    secret = file.read_text().strip()
    with open_store(url) as store:
        ((digest, key),) = store.keys.find().items()
    assert (digest, key.role, key.clusters, key.invalid(key.created)) == (hash_secret(secret), Role.ADMIN, (), "")
    assert file.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err.count(f"is in {file}") == 1


def test_first_key_takes_a_secret_that_is_there(tmp_path, started):
    url, file = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "first-key"
    open_store(url).close()
    secret = new_secret()
    file.write_text(secret)
    started(url, file)
    assert file.read_text() == secret
    with open_store(url) as store:
        assert [*store.keys.find()] == [hash_secret(secret)]


@pytest.mark.parametrize("content", ["", "password", "ncclt_short", "ncclt_" + "\u00e9" * 43])
def test_file_that_holds_no_key_is_refused_and_stays(tmp_path, started, content):
    url, file = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "first-key"
    open_store(url).close()
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match="holds no key"):
        started(url, file)
    assert file.read_text(encoding="utf-8") == content
    with open_store(url) as store:
        assert store.keys.find() == {}


def test_first_key_that_cannot_be_written_is_refused(tmp_path, started):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url).close()
    with pytest.raises(UsageError, match=r"cannot write the first key to .*: No such file or directory"):
        started(url, tmp_path / "absent" / "first-key")
