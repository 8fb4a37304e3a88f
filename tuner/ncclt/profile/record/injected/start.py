"""Wait in a Python process until its program imports PyTorch's optimizers."""

from __future__ import annotations

import os
import sys

from .when_imported import ModuleFinder

TYPE_CHECKING = False  # as typing's own, which costs 5 ms in every process to import
if TYPE_CHECKING:
    from types import ModuleType

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

    sys.meta_path.insert(0, ModuleFinder(_WATCHED, attach))
