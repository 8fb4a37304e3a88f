"""The NCCL tuner plugin: where it is, how it is built, and the table that it shares with a controller.

The plugin itself is C (the folder plugin/ of the repository, docs/internals/tuner-plugin.md). This package uses only
the standard library: it is imported by `ncclt run` before it starts a job, and by the build of the wheel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ncclt import __version__
from ncclt.user_dirs import with_home

LIBRARY_NAME = "libnccl-tuner-ncclt.so"
"""With this name NCCL_TUNER_PLUGIN=ncclt finds it as well, if the loader searches its folder."""

LIBRARY_VARIABLE = "NCCLT_PLUGIN"
"""Names the shared object, before every other location."""

DELEGATE_VARIABLE = "NCCLT_DELEGATE"
"""Names the tuner plugin that answers where the table has no row; `none` = NCCL itself."""


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the compiled plugin, None where there is none.

    Locations in order: what NCCLT_PLUGIN names, what `ncclt admin plugin build` made for this user and this version,
    and what came with the wheel.
    """
    named = environ.get(LIBRARY_VARIABLE)
    if named:
        path = Path(named).absolute()
        return path if path.is_file() else None
    return next((path for path in (user_library(environ), bundled_library()) if path.is_file()), None)


def user_library(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path that `ncclt admin plugin build` writes: by version, so that none outlives its ncclt."""
    data = environ.get("XDG_DATA_HOME") or ""
    base = Path(data) if Path(data).is_absolute() else Path(with_home(environ)["HOME"]) / ".local/share"
    return base / "ncclt" / "plugin" / f"{__version__}-{os.uname().machine}" / LIBRARY_NAME


def bundled_library() -> Path:
    """Return the wheel's own plugin, if the wheel was built with a compiler."""
    return Path(__file__).with_name(LIBRARY_NAME)
