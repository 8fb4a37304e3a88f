"""What a command cannot make sense of: said in words, with what to do, and with the exit code for what it is."""

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app

TUNE = ("tune", "--model", "bert")
LEONARDO = ("--cluster", "leonardo")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Return a caller in an empty folder: words in; exit code and what was said on stderr out."""
    for name in ("NCCLT_LAUNCHER", "NCCLT_CLUSTER", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NCCLT_STORAGE", "sqlite:///ncclt.db")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin1.txt").write_bytes("größe,µs\n".encode("latin-1"))

    def run(*words):
        done = CliRunner().invoke(app, list(words), prog_name="ncclt")
        assert done.stdout == ""
        return done.exit_code, done.stderr

    return run


@pytest.mark.parametrize(
    "words",
    [
        (*TUNE, *LEONARDO, "--nodes", "1", "--launcher", "torchrun", "--benchmark", "FOO"),
        (*TUNE, *LEONARDO, "--launcher", "slurm", "--benchmark", "FOO"),
        (*TUNE, *LEONARDO, "--launcher", "FOO"),
        ("recheck", "--model", "bert", *LEONARDO, "--nodes", "1", "--launcher", "torchrun", "--benchmark", "FOO"),
        ("preflight", *LEONARDO, "--launcher", "mpirun", "--hosts", "a,b", "--benchmark", "FOO"),
    ],
)
def test_a_word_that_names_no_launcher_or_benchmark_is_wrong_usage(call, words):
    """Of `ncclt recheck`, 3 says that there is nothing to check, which is another thing to a script."""
    code, said = call(*words)
    assert code == 2
    assert said.startswith(f"ncclt: unknown {words[-2].removeprefix('--')} 'FOO'")
    assert "\n  hint: one of " in said


@pytest.mark.parametrize(
    ("name", "why"),
    [("none.csv", "No such file or directory"), ("folder", "Is a directory"), ("latin1.txt", "it is not UTF-8 text")],
)
@pytest.mark.parametrize(
    "words",
    [
        (*TUNE, "--landscape", ""),
        (*TUNE, *LEONARDO, "--launcher", "ssh", "--hosts", "@"),
        ("preflight", "--cluster", "leonardo", "--launcher", "ssh", "--hosts", "@"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_in_words(call, words, name, why):
    *words, prefix = words
    code, said = call(*words, prefix + name)
    assert code == 1
    assert f": {why}\n  hint: " in said
    assert "Errno" not in said
    assert said.count(name) == 1


def test_a_configuration_that_cannot_be_read_is_said_in_words(call, tmp_path):
    (tmp_path / "latin1.txt").rename(tmp_path / "ncclt.toml")
    assert call("config", "show") == (
        2,
        "ncclt: ncclt.toml cannot be read: it is not UTF-8 text\n  hint: it is TOML: key = 'value'\n",
    )


def test_a_word_that_an_option_does_not_know_is_said_in_our_words(call):
    code, said = call("admin", "keys", "create", "--role", "owner")
    assert code == 2
    assert said.startswith("ncclt: invalid value for '--role': 'owner' is not one of 'env', ")
