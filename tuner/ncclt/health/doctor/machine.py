"""Facts of this machine that need no program: variables, configuration files, RDMA devices, CPU, driver."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from ncclt.health.doctor.adapters import adapters_here
from ncclt.health.doctor.conf_file import ConfFile, parse_conf_file
from ncclt.health.doctor.facts import Facts
from ncclt.nccl.driver_version import DRIVER_FILE, drivers_in
from ncclt.nccl.log.evidence import Evidence, Variable, shortened

SYSTEM_CONF = Path("etc/nccl.conf")
USER_CONF = ".nccl.conf"
CONF_VARIABLE = "NCCL_CONF_FILE"

_CPU_HEAD_CHARACTERS = 4096
_VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}


def machine_facts(environ: Mapping[str, str], *, root: Path = Path("/"), home: Path | None = None) -> Facts:
    """Return the facts of this machine.

    Args:
        environ: of this program.
        root: of the file system, another one in tests.
        home: where ~/.nccl.conf is looked for; None = that of the user's account, as NCCL does, regardless of HOME.
    """
    files, problems = _conf_files(environ, root=root, home=home or _account_home())
    return Facts(
        environment=tuple(
            Variable(name=name, value=value, evidence=Evidence(source="environment", text=shortened(f"{name}={value}")))
            for name, value in sorted(environ.items())
            if name.startswith("NCCL_")
        ),
        conf_files=files,
        conf_problems=problems,
        adapters=adapters_here(root),
        peer_memory=(root / "sys/module/nvidia_peermem").is_dir(),
        cpu=cpu_vendor(_text(root / "proc/cpuinfo")[:_CPU_HEAD_CHARACTERS]),
        driver=next(iter(drivers_in(_text(root / DRIVER_FILE.lstrip("/")))), ""),
    )


def _account_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user id without an account, as in many containers
        return None


def _conf_files(
    environ: Mapping[str, str], *, root: Path, home: Path | None
) -> tuple[tuple[ConfFile, ...], tuple[Evidence, ...]]:
    """Return the files that NCCL reads, in its order, and what is wrong with its configured paths."""
    named = environ.get(CONF_VARIABLE, "")
    problems = []
    paths = [Path(named)] if named else [home / USER_CONF] if home else []
    if named and not Path(named).is_file():
        why = "NCCL does not expand ~" if named.startswith("~") else "there is no such file here"
        problems.append(Evidence(source="environment", text=f"{CONF_VARIABLE}={named}: {why}"))
    found = []
    for path in [*paths, root / SYSTEM_CONF]:
        try:
            with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                found.append(parse_conf_file(lines, str(path)))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            problems.append(Evidence(source=str(path), text=f"{path} cannot be read: {error.strerror}"))
    return tuple(found), tuple(problems)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_vendor(text: str) -> str:
    """Return `intel`, `amd` or `arm` for the beginning of /proc/cpuinfo; empty = not known."""
    if "CPU implementer" in text:
        return "arm"
    return next((name for word, name in _VENDORS.items() if word in text), "")
