"""Write docs/reference/nccl-versions.json, which NCCL knows what, from the libraries in NVIDIA's wheels, or check it.

    python tuner/read_nccl.py            download and read every release in turn, write the file
    python tuner/read_nccl.py --check    write nothing, exit 1 where it differs: a new release, or a new fact

Some 10 GB are downloaded; one wheel at a time lies on the disk, below 1 GB. No code of NCCL runs. The file and
its differences are explained in docs/internals/tuner-plugin.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from nccl_library import TABLES, Library, read_library
from ncclt.core.nccl_version import NcclVersion

PROJECTS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
DOCUMENT = Path(__file__).parent.parent / "docs" / "reference" / "nccl-versions.json"
ABOUT = (
    "Which NCCL knows what, read from the libraries in NVIDIA's wheels by tuner/read_nccl.py; "
    "see docs/internals/tuner-plugin.md. "
    "A..B: every release read from A to B; A..: to the newest."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A release of NCCL for one major version of CUDA.

    Attributes:
        name: of the file.
        sha256: of the file, in hexadecimal.
        library: what its libnccl.so.2 knows.
    """

    name: str
    sha256: str
    library: Library


def releases(project: str) -> list[str]:
    """Return the releases of a project, newest first."""
    shown = _pip("index", "versions", project)
    versions = re.search(r"^Available versions: (.*)$", shown, re.MULTILINE)
    if not versions:
        raise ValueError(f"pip names no versions of {project}: {shown}")
    return versions[1].split(", ")


def fetch(requirement: str) -> Wheel:
    """Download a release, read it and delete it.

    Raises:
        ValueError: its library is of a kind that the reader does not know.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _pip("download", "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", name, requirement)
        (wheel,) = folder.glob("*.whl")
        with wheel.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        with zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(LIBRARY, folder))
        wheel.unlink()
        with library.open("rb") as file:
            return Wheel(name=wheel.name, sha256=sha256, library=read_library(file))


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def document(wheels: Iterable[Wheel]) -> dict[str, Any]:
    """Return the document: per fact the releases that know it.

    Raises:
        ValueError: two builds of one release differ in more than the CUDA that they are for.
    """
    builds: dict[NcclVersion, list[Wheel]] = {}
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        builds.setdefault(NcclVersion.parse(str(wheel.library.version)), []).append(wheel)
    libraries = {version: _same(builds[version]) for version in sorted(builds)}
    facts = FactsByRelease(libraries)
    return {
        "about": ABOUT,
        "wheels": {str(version): {wheel.name: wheel.sha256 for wheel in builds[version]} for version in libraries},
        "variables": facts.names(lambda library: library.variables),
        "variables_never_asked_for": facts.names(
            lambda library: (name for name, read in library.variables.items() if not read)
        ),
        "plugin_symbols": facts.names(lambda library: library.plugins),
        "names": {kind: facts.forms(lambda library, kind=kind: library.names[kind]) for kind in TABLES},
        "messages": facts.names(lambda library: library.messages),
        "structs": facts.definitions(lambda library: library.structs),
        "enums": facts.definitions(lambda library: library.enums),
    }


def _same(wheels: list[Wheel]) -> Library:
    """Return the facts of all builds of one release: some read a variable only in code for newer CUDA."""
    asked: dict[str, bool] = {}
    for wheel in wheels:
        for name, read in wheel.library.variables.items():
            asked[name] = asked.get(name, False) or read
    library = replace(wheels[0].library, variables=asked)
    for wheel in wheels:
        if set(wheel.library.variables) != set(asked) or replace(wheel.library, variables=asked) != library:
            raise ValueError(f"{wheel.name} and {wheels[0].name} know different things: decide which of them counts")
    return library


def text(content: dict[str, Any]) -> str:
    """Return the document as it is written: a line per fact."""
    return json.dumps(content, indent=1) + "\n"


class FactsByRelease:
    """Releases that know a fact."""

    def __init__(self, libraries: dict[NcclVersion, Library]) -> None:
        """Take the releases in their order."""
        self._libraries = libraries

    def names(self, of: Callable[[Library], Iterable[str]]) -> dict[str, str]:
        """Return name -> releases that have it."""
        each = [set(of(library)) for library in self._libraries.values()]
        return {name: self._runs([name in names for names in each]) for name in sorted(set().union(*each))}

    def forms(self, of: Callable[[Library], tuple[str, ...]]) -> list[dict[str, Any]]:
        """Return the forms that something took, each with its releases."""
        each = [of(library) for library in self._libraries.values()]
        forms = dict.fromkeys(form for form in each if form)
        return [{"versions": self._runs([form == current for form in each]), "is": list(current)} for current in forms]

    def definitions(self, of: Callable[[Library], dict[str, tuple[str, ...]]]) -> dict[str, list[dict[str, Any]]]:
        """Return name -> its forms."""
        names = sorted(set().union(*(of(library) for library in self._libraries.values())))
        return {name: self.forms(lambda library, name=name: of(library).get(name, ())) for name in names}

    def _runs(self, present: list[bool]) -> str:
        """Return the runs of releases: `A..B, C`, with an open end if the newest is in the last."""
        versions, texts = list(self._libraries), []
        for is_present, run in groupby(zip(present, versions, strict=True), key=lambda pair: pair[0]):
            run_versions = [str(version) for _, version in run]
            end = "" if run_versions[-1] == str(versions[-1]) else run_versions[-1]
            if is_present:
                texts.append(end if end == run_versions[0] else f"{run_versions[0]}..{end}")
        return ", ".join(texts)


def main(arguments: list[str] | None = None) -> int:
    """Write or check the document; return the exit status."""
    parser = argparse.ArgumentParser(description="Read from NVIDIA's wheels which NCCL knows what.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where it differs")
    options = parser.parse_args(arguments)
    wheels = []
    for project in PROJECTS:
        for release in releases(project):
            sys.stderr.write(f"{project} {release}\n")
            wheels.append(fetch(f"{project}=={release}"))
    wanted = text(document(wheels))
    if options.check:
        differs = wanted != DOCUMENT.read_text(encoding="utf-8")
        if differs:
            sys.stderr.write(f"differs: {DOCUMENT.name}; run tuner/read_nccl.py\n")
        return int(differs)
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
