"""What all commands have in common: how they refuse, and how they explain themselves."""

import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.application import COMMANDS, GROUPS, app
from ncclt.cli.env import main as env
from ncclt.cli.help import walk
from ncclt.core.option import Group


def call(*words, **environ):
    return CliRunner(env={"COLUMNS": "100", **environ}).invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("tnue",), "there is no command 'tnue'", "did you mean tune? `ncclt --help` lists all"),
        (("xyzzy",), "there is no command 'xyzzy'", "`ncclt --help` lists all"),
        (("tune", "--modle", "bert"), "no such option: --modle", "`ncclt tune --help` lists the options"),
        (("tune", "--nodes", "two"), "invalid value for '--nodes': must be a whole number", "`ncclt tune --help`"),
        (("tune", "--time", "long"), "invalid value for '--time': must be a number", "`ncclt tune --help`"),
        (("tune", "--force=maybe"), "option '--force' does not take a value", "`ncclt tune --help`"),
        (("tune", "--nodes"), "option '--nodes' requires an argument", "`ncclt tune --help` lists the options"),
        (("serve", "--port", "y"), "invalid value for '--port': must be a whole number", "`ncclt serve --help`"),
        (
            ("tune", "bert", "--model", "bert"),
            "got unexpected extra argument(s) (bert)",
            "`ncclt tune --help` lists the options",
        ),
        (("--quite",), "no such option: --quite", "`ncclt --help` lists the options"),
        (("profile", "shwo"), "no such command 'shwo'", "`ncclt profile --help` lists the options"),
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
    assert err == f"ncclt: {said}\n  hint: `ncclt env --help` lists the options\n"


def test_nothing_asked_shows_the_help():
    done = call("profile")
    assert "Compute the messages of a training step" in done.output
    assert "hint:" not in done.output


def test_help_is_about_the_command_alone(subtests):
    assert "--install-completion" in call("--help-all").stdout
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


def commands():
    """Return the words and the object of each command."""
    root = typer.main.get_command(app)
    return [("", root), *walk(root, typer.Context(root))]


def test_helps_fit_on_a_screen():
    assert len(call("--help", COLUMNS="80").stdout.splitlines()) <= 40
    assert len(call("tune", "--help", COLUMNS="80").stdout.splitlines()) <= 45


def test_options_under_headings_are_shown_by_help_all():
    shown, full = (call("tune", option, COLUMNS="80").stdout for option in ("--help", "--help-all"))
    assert max(map(len, (shown + full).splitlines())) <= 80
    headings = re.findall(r"\n([A-Z][a-z ]+):\n", full)
    assert (re.findall(r"\n([A-Z][a-z ]+):\n", shown), headings) == (["Options"], ["Options", *Group])
    assert "--sampler" in full
    assert "--sampler" not in shown
    assert "--help-all" not in call("cluster", "list", "--help").stdout, "there is nothing more to show"


def test_summaries_and_options_are_short():
    long = []
    for words, command in commands():
        summary = (command.help or "").partition("\n\n")[0]
        long += [(words, summary)] if len(summary) > 60 and words else []
        if words not in ("env", "run"):
            long += [(words, one.help) for one in command.params if len(one.help or "") > 80]
    assert long == []


def test_a_terminal_gets_the_same_headings_in_boxes(monkeypatch):
    monkeypatch.setattr("ncclt.cli.help.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    for words, headings in ((["--help"], GROUPS), (["tune", "--help-all"], Group)):
        shown = CliRunner().invoke(app, words).stdout
        assert all(f"\u256d\u2500 {heading} " in shown for heading in headings)
        assert max(map(len, shown.splitlines())) <= 80


def test_help_breaks_its_lines_where_the_terminal_ends(monkeypatch):
    monkeypatch.setattr("ncclt.cli.help.is_terminal", lambda: True)
    shown = call("tune", "--help", COLUMNS="200").stdout
    assert "repeats the best candidates, then A/B-tests the best policy against the default" in " ".join(shown.split())
    prose = shown.partition("Options")[0].splitlines()
    assert max(len(line.rstrip()) for line in prose) > 150
