"""The hook that lets the ranks of a PyTorch job agree before any uses the tuner table.

A job that is started from one place over several nodes can be checked nowhere else: a node may lack the plugin, a
launcher may drop variables. So the plugin waits (`NCCLT_AGREEMENT=hook`) until the hook, at `init_process_group`, has
compared over the job's own store what every rank has loaded. docs/adr/0009 and 0011 give the reasons.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from ncclt.deliver.node_files import put_file
from ncclt.errors import UsageError

AGREEMENT_VARIABLE = "NCCLT_AGREEMENT"
"""`hook`: the plugin waits for the ranks to agree; `none` or not set: it uses its table at once."""

TIMEOUT_VARIABLE = "NCCLT_AGREEMENT_TIMEOUT"
"""Seconds that rank 0 waits for the others; the default is in `injected/hook.py`."""

_PACKAGE = "_ncclt_agreement"


def hook_path(folder: Path) -> Path:
    """Return the hook's folder in a folder that every node reads, named by its content so that jobs share it."""
    digest = hashlib.sha256(repr(_hook_files()).encode()).hexdigest()[:16]
    return folder.absolute() / f"ncclt-hook-{digest}"


def write_hook(hook: Path) -> None:
    """Write the hook into the folder of `hook_path`.

    Raises:
        OSError: it cannot be written there, or another user could change it.
    """
    for name, content in _hook_files().items():
        put_file(hook / name, content.encode())


def agreement_environment(hook: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which every rank of a job loads the hook, and the plugin waits for it.

    Args:
        hook: of `hook_path`.
        environ: the environment that the job inherits.

    Raises:
        UsageError: the folder's name has a ':', which PYTHONPATH cannot carry.
    """
    if os.pathsep in str(hook):
        raise UsageError(f"{hook} cannot be used: its name has a ':'", hint="name another folder")
    before = environ.get("PYTHONPATH", "")
    path = f"{hook}{os.pathsep}{before}" if before else str(hook)
    return {AGREEMENT_VARIABLE: "hook", "PYTHONPATH": path}


def _hook_files() -> dict[str, str]:
    own, record, prove = files("ncclt.deliver.agree") / "injected", files("ncclt.profile.record"), files("ncclt.prove")
    sources = {
        f"{_PACKAGE}/when_imported.py": record / "injected" / "when_imported.py",
        **{f"{_PACKAGE}/{name}.py": own / f"{name}.py" for name in ("__init__", "hook", "live", "start")},
        **{f"{_PACKAGE}/{name}.py": prove / f"{name}.py" for name in ("experiment", "levels", "live_director")},
        "sitecustomize.py": record / "entry.py",  # last: with it Python begins to load the others
    }
    return {name: source.read_text(encoding="utf-8") for name, source in sources.items()}
