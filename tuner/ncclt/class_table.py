"""Classes by name: a literal table of the built-in ones, and the entry points of third parties."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ncclt.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """Launchers, benchmarks or readers; each is imported when it is used, and a third party replaces no built-in one.

    Attributes:
        kind: in messages, for example `launcher`.
        group: of entry points.
        built_in: name -> `module:Class`.
    """

    kind: str
    group: str
    built_in: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """Return all names, the built-in ones first; nothing is imported."""
        return (*self.built_in, *sorted(self._third_party()))

    def load(self, name: str) -> Any:
        """Import and return a class.

        Raises:
            UsageError: no class has this name.
            MissingDependencyError: a third party's class cannot be imported.
        """
        if value := self.built_in.get(name):
            module, _, attribute = value.partition(":")
            return getattr(import_module(module), attribute)
        point = self._third_party().get(name)
        if point is None:
            raise UsageError(f"unknown {self.kind} {name!r}", hint=f"known: {', '.join(self.names())}")
        try:
            return point.load()
        except Exception as error:
            raise MissingDependencyError(
                f"the {self.kind} {name!r} of a third party cannot be imported: {type(error).__name__}: {error}",
                hint=f"repair or uninstall the package that provides {point.value}",
            ) from error

    def load_third_party(self) -> Iterator[tuple[str, Any]]:
        """Yield third parties' classes by name; one that cannot be imported is reported once and skipped."""
        for name in sorted(self._third_party()):
            try:
                class_ = self.load(name)
            except MissingDependencyError as error:
                _report(f"ncclt: {error.message}; it is skipped\n")
            else:
                yield name, class_

    def _third_party(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points  # reads the metadata of every installed package

        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.built_in}


@cache
def _report(message: str) -> None:
    sys.stderr.write(message)
