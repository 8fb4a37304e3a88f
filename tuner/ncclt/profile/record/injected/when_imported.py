"""Wait in a Python process until its program imports a module; loads nothing by itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's own, which costs 5 ms in every process to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class ModuleFinder:
    """An import hook that calls `attach` with one module, once that is loaded: finder and loader in one."""

    def __init__(self, watched: str, attach: Callable[[ModuleType], None]) -> None:
        self._watched, self._attach = watched, attach
        self._loader: Any = None

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Find that one module exactly as Python would without us."""
        if name != self._watched:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        """Create the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module's code; from here on it does not remember that we were there."""
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._attach(module)
