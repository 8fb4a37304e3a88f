"""The client as a program: what it prints, and its exit codes."""

import json
import sys

import pytest
from answering_server import GOOD, PROBLEM, reply, serving
from ports import free_port

from ncclt.cli import env
from ncclt.client.__main__ import main

JOB = ("--cluster", "leonardo", "--model", "bert", "--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")


@pytest.fixture
def program(monkeypatch, capsys):
    """Return a caller: words in; exit code, stdout and stderr out."""
    for name in ("NCCLT_SERVER", "NCCLT_CLUSTER", "NCCLT_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["client.py", *words])
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return run


def test_it_prints_the_environment_and_nothing_else(program, monkeypatch):
    monkeypatch.setenv("NCCLT_API_KEY", "k-1")
    with serving(reply()) as server:
        monkeypatch.setenv("NCCLT_SERVER", server.url)
        assert program(*JOB) == (0, GOOD, "")
    assert server.seen[0].headers["Authorization"] == "Bearer k-1"


def test_a_refusal_is_said_with_its_hint_on_stderr_alone(subtests, program):
    for status, code in [(404, 3), (409, 3), (422, 2), (503, 69)]:
        with (
            subtests.test(status=status, code=code),
            serving(reply(status, json.dumps({**PROBLEM, "status": status}), "application/problem+json")) as server,
        ):
            assert program("--server", server.url, *JOB) == (code, "", "ncclt: nothing fits\n  hint: run tune\n")


def test_a_refusal_without_a_hint_is_one_line(program):
    problem = {name: value for name, value in PROBLEM.items() if name != "hint"}
    with serving(reply(404, json.dumps(problem), "application/problem+json")) as server:
        assert program("--server", server.url, *JOB) == (3, "", "ncclt: nothing fits\n")


def test_no_server_is_an_outage(program):
    code, out, said = program("--server", f"http://127.0.0.1:{free_port()}", *JOB, "--timeout", "1")
    assert (code, out) == (69, "")
    assert said.startswith("ncclt: ")


@pytest.mark.parametrize("server", ["nonsense", "http://[::1", "ftp://host"])
def test_an_address_that_is_none_is_a_wrong_option_in_every_command(program, server, capsys):
    assert program("--server", server, *JOB)[0] == 2
    assert env.main(["--server", server, *JOB]) == 2
    assert f"{server!r} is not a server address" in capsys.readouterr().err


def test_wrong_usage_names_what_is_wrong(subtests, program):
    for words, said in [
        (JOB, "--server"),
        (("--server", "http://127.0.0.1:9", *JOB[2:]), "--cluster"),
        (("--server", "http://127.0.0.1:9", *JOB, "--format", "yaml"), "'yaml'"),
        (("--server", "http://127.0.0.1:9", *JOB, "--allow", "anything"), "'anything'"),
    ]:
        with subtests.test(words=words, said=said):
            code, out, error = program(*words)
            assert (code, out) == (2, "")
            assert said in error.splitlines()[-1]
