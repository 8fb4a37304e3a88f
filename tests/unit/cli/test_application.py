"""What all commands have in common: how they refuse, and how they explain themselves."""

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import COMMANDS, GROUPS, app
from ncclt.cli.env import main as env
from ncclt.core.option import Group


def call(*words, **environ):
    return CliRunner(env={"COLUMNS": "100", **environ}).invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("tnue",), "there is no command 'tnue'", "did you mean tune? `ncclt --help` lists all"),
        (("xyzzy",), "there is no command 'xyzzy'", "`ncclt --help` lists all"),
        (("tune", "--modle", "bert"), "no such option: --modle", "`ncclt tune --help` shows what it takes"),
        (("tune", "--nodes", "two"), "invalid value for '--nodes': must be a whole number", "`ncclt tune --help`"),
        (("tune", "--time", "long"), "invalid value for '--time': must be a number", "`ncclt tune --help`"),
        (("tune", "--force=maybe"), "option '--force' does not take a value", "`ncclt tune --help`"),
        (("tune", "--nodes"), "option '--nodes' requires an argument", "`ncclt tune --help` shows what it takes"),
        (("serve", "--port", "y"), "invalid value for '--port': must be a whole number", "`ncclt serve --help`"),
        (
            ("tune", "bert", "--model", "bert"),
            "got unexpected extra argument(s) (bert)",
            "`ncclt tune --help` shows what it takes",
        ),
        (("--quite",), "no such option: --quite", "`ncclt --help` shows what it takes"),
        (("profile", "shwo"), "no such command 'shwo'", "`ncclt profile --help` shows what it takes"),
        (
            ("admin", "plugin", "check", "--ranks", "0"),
            "invalid value for '--ranks': must be at least 1",
            "`ncclt admin plugin check",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_two_lines(words, said, hint):
    done = CliRunner().invoke(app, list(words), prog_name="ncclt")
    first, second = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (2, "")
    assert first.startswith(f"ncclt: {said}")
    assert second.startswith(f"  hint: {hint}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "bert", "--nodes", "two"), "--nodes: invalid int value: 'two'"),
        ((), "the following arguments are required: --model"),
        (("--model", "bert", "rest"), "unrecognized arguments: rest"),
    ],
)
def test_env_refuses_alike(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        env(words)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err == f"ncclt: {said}\n  hint: `ncclt env --help` shows what it takes\n"


def test_nothing_asked_shows_the_help():
    done = call("profile")
    assert "Compute what one training step of a model sends" in done.output
    assert "hint:" not in done.output


def test_help_is_about_the_command_alone(subtests):
    assert "--install-completion" in call("--help").stdout
    for command in sorted(set(COMMANDS) - {"env", "run"}):
        with subtests.test(command):
            shown = call(command, "--help")
            assert shown.exit_code == 0
            assert "-completion" not in shown.stdout


def test_the_help_of_all_commands_is_as_wide_as_that_of_one():
    environ = os.environ | {"COLUMNS": "110"}
    words = [sys.executable, "-m", "ncclt", "--help-all"]
    shown = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
    tune = shown.partition("\nUsage: ncclt tune ")[2].partition("\nUsage: ")[0]
    assert 90 < max(map(len, tune.splitlines())) <= 110


def test_commands_stand_under_their_headings():
    """In the order of the data; a pipe gets text without boxes or colours."""
    listed = [name for names in GROUPS.values() for name in names]
    assert len(set(listed)) == len(listed)
    shown = call("--help", COLUMNS="80").stdout
    places = [shown.index(f"\n{heading}:\n") for heading in GROUPS]
    assert places == sorted(places)
    assert shown.index("\n  tune ") > shown.index("\nTune a job:")
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 80


def test_the_options_of_tune_have_headings_and_ten_stand_before_them():
    shown = call("tune", "--help", COLUMNS="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    first, *groups = re.split(r"\n([A-Z][a-z ]+):\n", shown.partition("\nOptions:\n")[2])
    assert groups[::2] == [group.value for group in Group]
    assert len(re.findall(r"^  --", first, re.MULTILINE)) == 10
    assert "--profile" not in shown
    assert all("\n  -" in f"\n{text}" for text in groups[1::2])


def test_a_terminal_gets_the_same_headings_in_boxes(monkeypatch):
    monkeypatch.setattr("ncclt.cli.help.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    for words, headings in ((["--help"], GROUPS), (["tune", "--help"], Group)):
        shown = CliRunner().invoke(app, words).stdout
        assert all(f"\u256d\u2500 {heading} " in shown for heading in headings)
        assert max(map(len, shown.splitlines())) <= 80


def test_help_breaks_its_lines_where_the_terminal_ends(monkeypatch):
    monkeypatch.setattr("ncclt.cli.help.is_terminal", lambda: True)
    shown = call("tune", "--help", COLUMNS="200").stdout
    assert "the best ones are launched again; and the resulting policy is measured in turn" in " ".join(shown.split())
    prose = shown.partition("Options")[0].splitlines()
    assert max(len(line.rstrip()) for line in prose) > 150
