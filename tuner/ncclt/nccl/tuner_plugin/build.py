"""Compiles the plugin; also used by the wheel's build hook, so that the compiler's flags are defined only here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ncclt import __version__
from ncclt.errors import MissingDependencyError, NccltError, UsageError

COMPILERS = ("gcc", "cc", "clang")
"""Tried in this order where CC names none."""

FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")

_TIMEOUT_S = 120


def source_folder() -> Path:
    """Return the folder of the C sources: inside the installed package, else in the repository.

    Raises:
        MissingDependencyError: neither exists.
    """
    installed = Path(__file__).with_name("source")
    repository = Path(__file__).resolve().parents[4] / "plugin"
    for folder in (installed, repository):
        if (folder / "tuner.c").is_file():
            return folder
    raise MissingDependencyError(
        "the sources of the plugin did not come with this installation", hint="install ncclt from its wheel or checkout"
    )


def sources(folder: Path | None = None) -> tuple[Path, ...]:
    """Return the C files, in order."""
    return tuple(sorted((folder or source_folder()).glob("*.c")))


def compiler() -> str | None:
    """Return the path of a C compiler, None where there is none. CC goes first."""
    named = os.environ.get("CC")
    return next((path for name in ([named] if named else COMPILERS) if (path := shutil.which(name))), None)


def command(target: Path, *, folder: Path | None = None, extra: Sequence[str] = ()) -> list[str]:
    """Return the command that compiles the plugin.

    Raises:
        MissingDependencyError: no compiler, or no sources.
    """
    program = compiler()
    if program is None:
        raise MissingDependencyError(
            "the plugin needs a C compiler and there is none here",
            hint="install gcc or set CC, or build it on a machine of the same kind and point NCCLT_PLUGIN to it",
        )
    version = f'-DNCCLT_VERSION="{__version__}"'
    files = [str(path) for path in sources(folder)]
    return [program, *FLAGS, version, *extra, "-shared", "-Wl,-z,now,-z,nodelete", "-o", str(target), *files]


def build(target: Path, *, folder: Path | None = None, extra: Sequence[str] = ()) -> Path:
    """Compile the plugin to `target`, which is replaced atomically and unchanged if that fails.

    Raises:
        MissingDependencyError: no compiler, or no sources.
        UsageError: the target cannot be written.
        NccltError: the compiler refused.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
            compiled = Path(scratch) / target.name
            done = subprocess.run(
                command(compiled, folder=folder, extra=extra), capture_output=True, text=True, timeout=_TIMEOUT_S
            )
            if done.returncode:
                last = "; ".join(done.stderr.strip().splitlines()[-3:])
                raise NccltError(f"the plugin does not compile: {last}", hint="is this gcc 8 or newer, on Linux?")
            # Replaced, not overwritten: a job may have the old one mapped.
            compiled.replace(target)
    except subprocess.TimeoutExpired as error:
        raise NccltError(f"the compiler took more than {_TIMEOUT_S} s") from error
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror or error}") from error
    return target
