"""The program: its commands, and how it reports errors."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import typer

from ncclt import __version__
from ncclt.cli import completion
from ncclt.cli.configuration import default_map, forget_storage, keep_storage, storage_flag
from ncclt.cli.exits import report
from ncclt.cli.help import LazyGroup, arrange, format_styled, show_all, walk
from ncclt.errors import NccltError, UsageError, as_ncclt_error, translate_refusal

GROUPS: dict[str, tuple[str, ...]] = {
    "Tune a job": ("profile", "advise", "tune", "autotune", "verify"),
    "Use the result": ("env", "run", "attest"),
    "Cluster": ("cluster", "landscape", "doctor", "preflight", "recheck", "upgrade"),
    "Results": ("studies", "report", "serve"),
    "Operate": ("admin", "config"),
}
"""Heading -> commands, in the order of the help."""

COMMANDS = {name: f"ncclt.cli.{name}" for names in GROUPS.values() for name in names}
"""Command -> module; except for those in `_PLAIN`, each module has a typer application named `app`."""

_PLAIN = {"env": "Print validated NCCL settings for a job.", "run": "Start a job with its validated NCCL settings."}
"""Commands that do without the framework: their module has a `main`. Their help texts, for `ncclt --help`."""

_RARE = ("debug", "install_completion", "show_completion")
"""Options of the program that only --help-all shows."""

_REFUSED: type[Exception] = typer.BadParameter.__mro__[1]
"""The framework's error for invalid arguments; it has no public name of its own."""


class Program(LazyGroup):
    """All commands, and the one place where errors are reported."""

    modules: ClassVar[Mapping[str, str]] = COMMANDS

    def import_command(self, name: str) -> Any:
        """Import one command and return it with its heading."""
        command: Any = (
            typer.main.get_command(_plain(name, importlib.import_module(COMMANDS[name]).main))
            if name in _PLAIN
            else super().import_command(name)
        )
        command.rich_help_panel = next(heading for heading, names in GROUPS.items() if name in names)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program."""
        arrange(self)
        params: list[Any] = self.params
        for param in params:
            param.hidden = param.name in _RARE and not ctx.params.get("help_all")
        format_styled(super().format_help, ctx, formatter)

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
        finally:
            forget_storage()


def _plain(name: str, main: Callable[[Sequence[str]], int]) -> typer.Typer:
    """Wrap a command that parses its own arguments as one of the framework's."""
    wrapper = typer.Typer(add_completion=False)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}

    def _command(**_completed: object) -> None:
        # From sys.argv: the framework drops the `--` between our options and the job's command.
        url = storage_flag()
        storage = [] if url is None else ["--storage", url]
        raise typer.Exit(main([*storage, *sys.argv[sys.argv.index(name) + 1 :]]))

    shown = completion.signature_of(_parser_of(name)) if completion.is_completing() else inspect.Signature()
    vars(_command)["__signature__"] = shown
    _command.__annotations__ = {}
    wrapper.command(name, help=_PLAIN[name], add_help_option=False, context_settings=anything)(_command)
    return wrapper


def _refusal(error: Any, ctx: Any) -> Exception:
    """Return an error of the framework as one of ours; write the help where it asks for that."""
    if type(error).__name__ == "NoArgsIsHelpError":
        # On a terminal the framework has written it, and the message is empty.
        sys.stdout.write("".join(f"{line}\n" for line in error.format_message().splitlines()))
        return typer.Exit(error.exit_code)
    where, colon, why = error.format_message().rstrip(".").partition("': ")
    message = f"{where}{colon}{translate_refusal(why)}"
    # Some of the framework's refusals name no command.
    command = error.ctx.command_path if error.ctx else f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()
    hint = f"`{command} --help` lists the options"
    return typer.Exit(report(UsageError(message[:1].lower() + message[1:], hint=hint)))


_WIDEST = 200
"""Columns of plain help at most; a pipe without COLUMNS has 80."""

app = typer.Typer(
    cls=Program,
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
    ctx.params["help_all"] = True
    sys.stdout.write(group.get_help(ctx) + "\n")
    for words, command in walk(group, ctx):
        if words in _PLAIN:
            sys.stdout.write(_parser_of(words).format_all() + "\n")
            continue
        # The framework prints it; where it does not, it returns it.
        show_all(command)
        sys.stdout.write(
            command.get_help(typer.Context(command, info_name=f"ncclt {words}", max_content_width=_WIDEST)) + "\n"
        )
        sys.stdout.flush()
    raise typer.Exit


def _parser_of(name: str) -> Any:
    return importlib.import_module({"env": "ncclt.cli.env", "run": "ncclt.cli.run_prepare"}[name]).parser()


@app.callback()
def root(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show all options of all commands.")
    ] = False,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", callback=keep_storage, help="Database URL of the store. [NCCLT_STORAGE]"),
    ] = None,
) -> None:
    """Find, validate and deploy the fastest NCCL settings for a training job.

    Start with: ncclt tune --model bert --nodes 2
    """
    ctx.default_map = default_map()
