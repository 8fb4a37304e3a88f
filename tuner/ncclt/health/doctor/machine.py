"""Facts of this machine that need no program: variables, configuration files, RDMA devices, CPU, driver."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ncclt.health.doctor.adapters import adapters_here, first_line
from ncclt.health.doctor.conf_file import ConfFile, parse_conf_file
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.nccl_topology import CPU_VENDORS
from ncclt.health.doctor.variables import shown_value
from ncclt.nccl.driver_version import DRIVER_FILE, drivers_in
from ncclt.nccl.log.evidence import Evidence, Variable, shortened
from ncclt.nccl.parameters import FILES, NamedFile

SYSTEM_CONF = Path("etc/nccl.conf")
USER_CONF = ".nccl.conf"
CONF_VARIABLE = "NCCL_CONF_FILE"

_NOT_FILES = frozenset({"", "none", "static_plugin", "stdout", "stderr"})
"""Values of variables of files that name none (plugin_open.cc, debug.cc)."""

_LIBRARY_FOLDERS = ("lib64", "usr/lib64", "lib", "usr/lib", "usr/local/lib")

_CPU_HEAD_CHARACTERS = 4096


def machine_facts(environ: Mapping[str, str], *, root: Path = Path("/"), home: Path | None = None) -> Facts:
    """Return the facts of this machine.

    Args:
        root: of the file system, another one in tests.
        home: where ~/.nccl.conf is looked for; None = that of the user's account, as NCCL does, regardless of HOME.
    """
    files, problems = _read_conf_files(environ, root=root, home=home or _find_account_home())
    cpu = _read_text(root / "proc/cpuinfo")[:_CPU_HEAD_CHARACTERS]
    return Facts(
        here=True,
        environment=tuple(
            Variable(
                name=name,
                value=value,
                evidence=Evidence(source="environment", text=shortened(f"{name}={shown_value(name, value)}")),
            )
            for name, value in sorted(environ.items())
            if name.startswith(("NCCL_", "RCCL_"))
        ),
        conf_files=files,
        file_problems=(*problems, *_find_missing_files(environ, files, root)),
        adapters=adapters_here(root),
        peer_memory=(root / "sys/module/nvidia_peermem").is_dir(),
        cpu=cpu_vendor(cpu),
        virtual=_find_virtual_machine(cpu, root),
        vendor=first_line(root / "sys/class/dmi/id/sys_vendor"),
        driver=next(iter(drivers_in(_read_text(root / DRIVER_FILE.lstrip("/")))), ""),
    )


def _find_account_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user id without an account, as in many containers
        return None


def _read_conf_files(
    environ: Mapping[str, str], *, root: Path, home: Path | None
) -> tuple[tuple[ConfFile, ...], tuple[Evidence, ...]]:
    """Return the files that NCCL reads, in its order, and what is wrong with its configured paths."""
    configured = environ.get(CONF_VARIABLE, "")
    paths = [Path(configured)] if configured else [home / USER_CONF] if home else []
    files, problems = [], []
    for path in [*paths, root / SYSTEM_CONF]:
        try:
            with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                files.append(parse_conf_file(lines, str(path)))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except OSError as error:
            problems.append(Evidence(source=str(path), text=f"{path} cannot be read: {error.strerror}"))
    return tuple(files), tuple(problems)


def _find_missing_files(environ: Mapping[str, str], files: tuple[ConfFile, ...], root: Path) -> Iterator[Evidence]:
    """Yield the files that variables name and that are not on this machine; the environment wins over conf files."""
    named = {name: (value, Evidence(source="environment", text="")) for name, value in environ.items()}
    for file in files:
        for row in file.assignments:
            named.setdefault(row.name, (row.value, row.evidence))
    for name, file_row in FILES.items():
        value, evidence = named.get(name, ("", Evidence(source="", text="")))
        # NCCL_NET_PLUGIN may list several (NCCL 2.28).
        for part in value.split(",") if file_row.library is not None else [value]:
            word = part.strip()
            if word.lower() not in _NOT_FILES and (why := _explain_missing_file(file_row, word, environ, root)):
                text = f"{name}={shortened(value)}: {why}, so {file_row.without}"
                yield Evidence(source=evidence.source, line=evidence.line, text=text)


def _explain_missing_file(row: NamedFile, value: str, environ: Mapping[str, str], root: Path) -> str:
    """Return the reason why a file cannot be used; empty = it can."""
    if value.startswith("~"):
        return "NCCL does not expand ~"
    if row.written:
        folder = Path(value).parent
        return "" if "%" in str(folder) or folder.is_dir() else f"there is no folder {folder} here"
    if row.library is None or "/" in value:
        return "" if Path(value).is_file() else "there is no such file here"
    names = [value, *([f"{row.library}-{value}.so"] if row.library else [])]
    folders = [Path(part) for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    folders += [path for name in _LIBRARY_FOLDERS for path in (root / name, *(root / name).glob("*-linux-gnu"))]
    cached = _read_text(root / "etc/ld.so.cache")
    if any(f"\0{name}\0" in cached or any((folder / name).is_file() for folder in folders) for name in names):
        return ""
    return f"{' and '.join(names)} are in no folder of LD_LIBRARY_PATH or of the system"


def _find_virtual_machine(cpu: str, root: Path) -> Evidence | None:
    """Return the sign that this is a virtual machine; None = there is none."""
    if re.search(r"^flags\s*:.*\bhypervisor\b", cpu, re.M):
        return Evidence(source="/proc/cpuinfo", text="the CPU has the flag `hypervisor`")
    if kind := first_line(root / "sys/hypervisor/type"):
        return Evidence(source="/sys/hypervisor/type", text=kind)
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_vendor(text: str) -> str:
    """Return `intel`, `amd` or `arm` for the beginning of /proc/cpuinfo; empty = not known."""
    if "CPU implementer" in text:
        return "arm"
    return next((name for word, name in CPU_VENDORS.items() if word in text), "")
