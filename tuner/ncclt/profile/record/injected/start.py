"""Wait in a Python process until its program imports PyTorch's optimizers."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing's own, which costs 5 ms in every process to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_WATCHED = "torch.optim.optimizer"


def install(inject: str) -> None:
    """Begin to watch this process.

    Args:
        inject: the folder on PYTHONPATH; its parent is the recording's folder.
    """
    folder = inject.rpartition(os.sep)[0]
    try:
        # It is enough that the file is there: some Python of the job has come this far.
        os.close(os.open(f"{folder}/python-started", os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return  # the folder was removed, or is not on this host: there is nothing to record into

    def attach(optim: ModuleType) -> None:
        from .recorder import Recorder

        Recorder(folder).attach(optim)

    sys.meta_path.insert(0, OptimizerFinder(attach))


class OptimizerFinder:
    """An import hook that calls `attach` with PyTorch's optimizer module once that is loaded."""

    def __init__(self, attach: Callable[[ModuleType], None]) -> None:
        self._attach = attach

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """Find that one module exactly as Python would without us."""
        if name != _WATCHED:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._attach)
        return spec


class _Loader:
    """Loads a module by its own loader, then calls back."""

    def __init__(self, original: Any, attach: Callable[[ModuleType], None]) -> None:
        self._original, self._attach = original, attach

    def create_module(self, spec: Any) -> Any:
        """Create the module as its own loader does."""
        return self._original.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module's code; from here on it does not remember that we were there."""
        module.__loader__ = module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._attach(module)
