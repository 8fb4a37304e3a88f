"""Wait in a Python process until its program imports torch.distributed."""

from __future__ import annotations

import os
import sys

from .when_imported import ModuleFinder  # type: ignore[import-untyped]  # of ncclt.profile.record, copied beside this

TYPE_CHECKING = False  # as typing's own, which costs 5 ms in every process to import
if TYPE_CHECKING:
    from types import ModuleType

_WATCHED = "torch.distributed.distributed_c10d"


def install(_inject: str) -> None:
    """Begin to watch this process, unless the user turned the agreement off."""
    if os.environ.get("NCCLT_AGREEMENT") != "none":
        sys.meta_path.insert(0, ModuleFinder(_WATCHED, _attach))


def _attach(distributed: ModuleType) -> None:
    is_live = os.environ.get("NCCLT_LIVE") == "1"
    try:
        from .hook import wrap

        if is_live:
            from .live import start
    except (ImportError, OSError):
        return  # the folder was removed: this rank does not answer, so that all keep the default
    wrap(distributed, start if is_live else None)
