"""The hook that lets the ranks of a PyTorch job agree before any uses the tuner table.

A job that is started from one place over several nodes can be checked nowhere else: a node may lack the plugin, a
launcher may drop variables. So the plugin waits (`NCCLT_AGREEMENT=hook`) until the hook, at `init_process_group`, has
compared over the job's own store what every rank has loaded. docs/adr/0009 and 0011 give the reasons.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from ncclt.errors import UsageError

AGREEMENT_VARIABLE = "NCCLT_AGREEMENT"
"""`hook`: the plugin waits for the ranks to agree; `none` or not set: it uses its table at once."""

TIMEOUT_VARIABLE = "NCCLT_AGREEMENT_TIMEOUT"
"""Seconds that rank 0 waits for the others; the default is in `injected/hook.py`."""

_PACKAGE = "_ncclt_agreement"


def place_hook(folder: Path) -> Path:
    """Write the hook into a folder of its own, named by its content, and return that; one that is there is kept.

    Args:
        folder: that every node of the job can read.

    Raises:
        OSError: it cannot be written there.
    """
    contents = _hook_files()
    digest = hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()[:16]
    target = folder.absolute() / f"ncclt-hook-{digest}"
    if target.is_dir():
        return target
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".ncclt-hook-"))
    try:
        for name, content in contents.items():
            path = scratch / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
            path.chmod(0o644)
            path.parent.chmod(0o755)
        scratch.rename(target)
    except OSError:
        if not target.is_dir():  # else another start was faster
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def agreement_environment(hook: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which every rank of a job loads the hook, and the plugin waits for it.

    Args:
        hook: of `place_hook`.
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
    own, record = files("ncclt.deliver.agree") / "injected", files("ncclt.profile.record")
    sources = {
        "sitecustomize.py": record / "entry.py",
        f"{_PACKAGE}/when_imported.py": record / "injected" / "when_imported.py",
        **{f"{_PACKAGE}/{name}.py": own / f"{name}.py" for name in ("__init__", "hook", "start")},
    }
    return {name: source.read_text(encoding="utf-8") for name, source in sources.items()}
