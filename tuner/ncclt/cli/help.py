"""Groups of commands, and their help: options under headings, plain text where no terminal shows it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TextIO, cast

import typer
from typer.core import TyperGroup

from ncclt.cli.completion import is_completing
from ncclt.cli.configuration import keep_storage
from ncclt.cli.stdio import Styled
from ncclt.core.option import Group
from ncclt.errors import UsageError


class LazyGroup(TyperGroup):
    """Group whose commands are modules, each imported when it is called."""

    modules: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Command -> module with a typer application named `app`, in the order of the help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command, None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        command = self.import_command(cmd_name)
        command.name = cmd_name
        # Completion is installed once, for the whole program.
        command.params = [p for p in command.params if p.name not in ("install_completion", "show_completion")]
        for shown in (command, *getattr(command, "commands", {}).values()):
            paragraphs = inspect.cleandoc(shown.help or "").split("\n\n")
            shown.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
            arrange(shown)
            shown.format_help = partial(format_styled, shown.format_help)
            if shown.add_help_option and not hasattr(shown, "list_commands"):
                _shorten(shown)
        return command

    def import_command(self, name: str) -> Any:
        """Import one command and return it."""
        return typer.main.get_command(importlib.import_module(self.modules[name]).app)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with; suggest the nearest name for an unknown one."""
        if args and args[0] not in self.modules and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.modules, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no command {args[0]!r}", hint=f"{meant}`{ctx.command_path} --help` lists all")
        return super().resolve_command(ctx, args)


def walk(group: Any, ctx: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group with its words, in the order of the help."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        yield name, command
        if hasattr(command, "list_commands"):
            for words, below in walk(command, ctx):
                yield f"{name} {words}", below


def format_styled(write: Callable[[Any, Any], None], ctx: Any, formatter: Any) -> None:
    """Write a help, which has nothing of a store, with the framework's styles."""
    with contextlib.redirect_stdout(cast("TextIO", Styled(sys.stdout))):
        write(ctx, formatter)


def _shorten(command: Any) -> None:
    """Give a command the options of all commands, and hide those under a heading from its --help."""
    app = typer.Typer(add_completion=False)
    app.command()(_shared)
    shared: list[Any] = typer.main.get_command(app).params
    storage, help_all = shared
    headed = [param for param in command.params if param.rich_help_panel]
    # A shell completes only what is not hidden.
    for param in (*headed, storage):
        param.hidden = not is_completing()
    help_all.hidden = not headed
    own = command.get_params
    command.get_params = lambda ctx: [*command.params, storage, help_all, *own(ctx)[len(command.params) :]]


def show_all(command: Any) -> None:
    """Show the options under headings in the help of a command, too."""
    for param in command.params:
        param.hidden = False


def _print_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        show_all(ctx.command)
        # The framework prints it; where it does not, it returns it.
        sys.stdout.write(ctx.get_help() + "\n")
        raise typer.Exit


_STORAGE = typer.Option(metavar="URL", callback=keep_storage, expose_value=False, help="Database URL of the store.")
_HELP_ALL = typer.Option("--help-all", callback=_print_all, is_eager=True, expose_value=False, help="Show all options.")


def _shared(storage: Annotated[str | None, _STORAGE] = None, help_all: Annotated[bool, _HELP_ALL] = False) -> None:
    """Take the options of all commands."""


def is_terminal() -> bool:
    """Return True if the help goes to a terminal."""
    return sys.stdout.isatty()


def arrange(command: Any) -> None:
    """Order the options of a command by their headings; outside of a terminal, its help is text without boxes."""
    order = ["", *Group]
    command.params.sort(key=lambda param: order.index(param.rich_help_panel or ""))
    if not is_terminal():
        command.rich_markup_mode = None
        command.format_options = partial(_write_plainly, command)


def _write_plainly(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        usual = "Arguments" if param.param_type_name == "argument" else "Options"
        if record := param.get_help_record(ctx):
            sections.setdefault(param.rich_help_panel or usual, []).append(record)
    # --help has no heading and is the last parameter.
    for name in command.list_commands(ctx) if hasattr(command, "list_commands") else ():
        below = command.get_command(ctx, name)
        text = " ".join((below.help or "").partition("\n\n")[0].split())
        sections.setdefault(below.rich_help_panel or "Commands", []).append((name, text))
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows)
