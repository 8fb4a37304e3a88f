"""What all commands have in common: how they refuse, and how they explain themselves."""

import re

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
        (("tune", "--modle", "bert"), "no such option: --modle", "`ncclt tune --help` lists the options"),
        (("tune", "--nodes", "two"), "invalid value for '--nodes': must be a whole number", "`ncclt tune --help`"),
        (("tune", "--force=maybe"), "option '--force' does not take a value", "`ncclt tune --help`"),
        (("tune", "--nodes"), "option '--nodes' requires an argument", "`ncclt tune --help` lists the options"),
        (
            ("tune", "bert", "--model", "bert"),
            "got unexpected extra argument(s) (bert)",
            "`ncclt tune --help` lists the options",
        ),
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
        ((), "the following arguments are required: --model"),
    ],
)
def test_env_refuses_alike(words, said, capsys):
    with pytest.raises(SystemExit) as end:
        env(words)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err == f"ncclt: {said}\n  hint: `ncclt env --help` lists the options\n"


def test_help_is_about_the_command_alone(subtests):
    assert "--install-completion" in call("--help-all").stdout
    for command in sorted(set(COMMANDS) - {"env", "run"}):
        with subtests.test(command):
            shown = call(command, "--help")
            assert shown.exit_code == 0
            assert "-completion" not in shown.stdout


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
