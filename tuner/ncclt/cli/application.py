"""The table of commands; each is a module that is imported only when it is called."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from ncclt import __version__
from ncclt.cli import completion
from ncclt.cli.configuration import default_map
from ncclt.cli.help import VERBS, arrange, heading_of
from ncclt.cli.output import report
from ncclt.cli.stdio import Styled
from ncclt.errors import NccltError, UsageError, as_ncclt_error, translate_refusal

COMMANDS: dict[str, str] = {
    "autotune": "ncclt.cli.autotune",
    "tune": "ncclt.cli.tune",
    "check": "ncclt.cli.check",
    "verify": "ncclt.cli.verify",
    "doctor": "ncclt.cli.doctor",
    "preflight": "ncclt.cli.preflight",
    "env": "ncclt.cli.env",
    "run": "ncclt.cli.run",
    "attest": "ncclt.cli.attest",
    "profile": "ncclt.cli.profile",
    "cluster": "ncclt.cli.cluster",
    "upgrade": "ncclt.cli.upgrade",
    "landscape": "ncclt.cli.landscape",
    "simulate": "ncclt.cli.simulate",
    "estimate": "ncclt.cli.estimate",
    "advise": "ncclt.cli.advise",
    "studies": "ncclt.cli.studies",
    "report": "ncclt.cli.report",
    "recommendations": "ncclt.cli.recommendations",
    "serve": "ncclt.cli.serve",
    "jobs": "ncclt.cli.jobs",
    "worker": "ncclt.cli.worker",
    "store": "ncclt.cli.store",
    "keys": "ncclt.cli.keys",
    "plugin": "ncclt.cli.plugin",
    "config": "ncclt.cli.config",
}
"""Command -> module; except for those in `_PLAIN`, each module has a typer application named `app`."""

_PLAIN = {
    "env": "Print the environment that was proven for a workload on a cluster, and nothing else.",
    "run": "Start a job with what was proven for it, and say afterwards whether it took effect.",
}
"""Commands that do without the framework: their module has a `main`. Their help texts, for `ncclt --help`."""

_REFUSED: type[Exception] = typer.BadParameter.__mro__[1]
"""The framework's error for invalid arguments; it has no public name of its own."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported on demand, and the one place where errors are reported."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [name for names in VERBS.values() for name in names if name in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command: Any = typer.main.get_command(_plain(cmd_name, module.main) if cmd_name in _PLAIN else module.app)
        command.name, command.rich_help_panel = cmd_name, heading_of(cmd_name)
        # Completion is installed once, for the whole program.
        command.params = [p for p in command.params if p.name not in ("install_completion", "show_completion")]
        for one in (command, *getattr(command, "commands", {}).values()):
            one.help = _unwrapped(one.help or "")
            arrange(one)
            one.format_help = partial(_format_styled, one.format_help)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program."""
        arrange(self)
        _format_styled(super().format_help, ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with; suggest the nearest name for an unknown one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no command {args[0]!r}", hint=f"{meant}`ncclt --help` lists all")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the options before the command."""
        try:
            if not ctx.resilient_parsing:
                completion.install_for(self, ctx, args)
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise typer.Exit(report(error)) from error
        except _REFUSED as error:
            raise _refusal(error, ctx) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn errors into one-line messages and exit codes."""
        try:
            return super().invoke(ctx)
        except _REFUSED as error:
            raise _refusal(error, ctx) from error
        except (NccltError, ModuleNotFoundError) as error:
            if ctx.params.get("debug"):
                raise
            raise typer.Exit(report(as_ncclt_error(error))) from error


def _format_styled(write: Callable[[Any, Any], None], ctx: Any, formatter: Any) -> None:
    """Write a help, which has nothing of a store, with the framework's styles."""
    with contextlib.redirect_stdout(cast("TextIO", Styled(sys.stdout))):
        write(ctx, formatter)


def _plain(name: str, main: Callable[[Sequence[str]], int]) -> typer.Typer:
    """Wrap a command that parses its own arguments as one of the framework's."""
    made = typer.Typer(add_completion=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}

    def _command(**_completed: object) -> None:
        # From sys.argv: the framework drops the `--` between our options and the job's command.
        raise typer.Exit(main(sys.argv[sys.argv.index(name) + 1 :]))

    shown = completion.signature_of(_parser_of(name)) if completion.is_completing() else inspect.Signature()
    vars(_command)["__signature__"] = shown
    _command.__annotations__ = {}
    made.command(name, help=_PLAIN[name], add_help_option=False, context_settings=anything)(_command)
    return made


def _refusal(error: Any, ctx: Any) -> Exception:
    """Return an error of the framework as one of ours; write the help where it asks for that."""
    if type(error).__name__ == "NoArgsIsHelpError":
        # On a terminal the framework has written it, and the message is empty.
        sys.stdout.write("".join(f"{line}\n" for line in error.format_message().splitlines()))
        return typer.Exit(error.exit_code)
    where, colon, why = error.format_message().rstrip(".").partition("': ")
    said = f"{where}{colon}{translate_refusal(why)}"
    # Some of the framework's refusals name no command.
    command = error.ctx.command_path if error.ctx else f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()
    hint = f"`{command} --help` shows what it takes"
    return typer.Exit(report(UsageError(said[:1].lower() + said[1:], hint=hint)))


def _unwrapped(text: str) -> str:
    """Return a docstring with one line per paragraph, to be wrapped at the terminal's width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


_WIDEST = 200
"""Columns of plain help at most; a pipe without COLUMNS has 80."""

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDEST},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ncclt {__version__}\n")
        raise typer.Exit


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    """Print the help of every command, as a manual for `less` and `grep`."""
    if not wanted:
        return
    group: Any = ctx.command
    sys.stdout.write(group.get_help(ctx) + "\n")
    for name in COMMANDS:
        if name in _PLAIN:
            sys.stdout.write(_parser_of(name).format_help() + "\n")
            continue
        command = group.get_command(ctx, name)
        below = getattr(command, "commands", {})
        for words, one in [(name, command), *((f"{name} {word}", below[word]) for word in sorted(below))]:
            # The framework prints it; where it does not, it returns it.
            sys.stdout.write(one.get_help(_context(one, words)) + "\n")
            sys.stdout.flush()
    raise typer.Exit


def _context(command: Any, words: str) -> typer.Context:
    """Return what the help of a command needs: its name, and as wide as the help of the program."""
    return typer.Context(command, info_name=f"ncclt {words}", max_content_width=_WIDEST)


def _parser_of(name: str) -> Any:
    return importlib.import_module({"env": "ncclt.cli.env", "run": "ncclt.cli.run_options"}[name]).parser()


@app.callback()
def root(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show the help of every command.")
    ] = False,
) -> None:
    """Find, prove and serve the NCCL configuration that moves one training workload fastest on one cluster.

    Start with: ncclt tune --model bert --nodes 2
    """
    ctx.default_map = default_map()
