"""Single commands, called as a user calls them, with a store of their own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ncclt.store import Store, open_store


@dataclass(frozen=True)
class Command:
    """One command over one store."""

    store: Store
    url: str

    def __call__(self, function: Callable[..., None], *words: str) -> str:
        """Run a command's function and return what it printed; our errors pass through."""
        app = typer.Typer()
        app.command()(function)
        done = CliRunner(env={"NCCLT_STORAGE": self.url}).invoke(app, [*words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def call(self, app: typer.Typer, *words: str, url: str = "") -> str:
        """Run a subcommand and return what it printed; our errors pass through."""
        done = CliRunner(env={"NCCLT_STORAGE": url or self.url}).invoke(app, [*words], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.stdout


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Return a caller of commands with an empty store."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with open_store(url) as store:
        yield Command(store=store, url=url)
