"""Build the wheel and the sdist into dist/, and prove them where nothing of this repository is: a clean environment.

Run by `make dist`; `make release` adds what must hold before an upload, and prints the upload. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"

IN_WHEEL = (
    "ncclt/profiles_data/workloads/bert.json",
    "ncclt/profiles_data/clusters/dgx-h100.toml",
    "ncclt/profiles_data/landscapes/mi355x-2x8.csv",
    "ncclt/nccl/tuner_plugin/source/tuner.c",
    "ncclt/py.typed",
    "ncclt_api/app.py",
)
IN_SDIST = (
    "hatch_build.py",
    "pyproject.toml",
    "plugin/tuner.c",
    "profiles/workloads/bert.json",
    "LICENSE",
    "Makefile",
    "constraints.txt",
)
NOT_IN_WHEEL = re.compile(r"(^|/)(tests|bench|docs|__pycache__)/|\.pyc$")

IMAGES = {"api": "api", "tuner": "tune"}
"""Folder of an image -> the extra that it installs, beside `jobs`."""

PIN = (
    *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"),
    *("--constraint", "constraints.txt", "--python-version", "3.11", "--python-platform", "linux"),
)

COMMANDS = (
    (("--version",), "ncclt "),
    (("--help",), "cluster"),
    (("env", "--help"), "--cluster"),
    (("run", "--help"), "--"),
    (("profile", "list"), "bert"),
    (("cluster", "list"), "dgx-h100"),
    (("cluster", "show", "dgx-h100", "--toml"), "nic_gbps"),
    (("admin", "plugin", "build"), "libnccl-tuner-ncclt.so"),
)
"""What the base installation must do, and a word of what it prints."""


def run(argv: Sequence[str | Path], **options: object) -> str:
    """Run a command and return what it printed; its end with an error ends this program."""
    done = subprocess.run([*map(str, argv)], text=True, capture_output=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, argv))} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def build() -> None:
    """Build both; a wheel with the compiled plugin gets the manylinux tag that its symbols allow."""
    shutil.rmtree(DIST, ignore_errors=True)
    tools = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", folder, ROOT], env=environ)
        DIST.mkdir()
        for made in sorted(Path(folder).iterdir()):
            if re.search(r"-linux_\w+\.whl$", made.name):
                run([tools / "auditwheel", "repair", "--wheel-dir", DIST, made], env=environ)
            else:
                shutil.move(made, DIST)
    run([tools / "twine", "check", "--strict", *DIST.iterdir()])


def check_contents() -> Path:
    """Check what is inside both, and return the wheel."""
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as one, tarfile.open(sdist) as other:
        inside, packed = one.namelist(), {name.partition("/")[2] for name in other.getnames()}
    problems = [f"{name} is missing in {wheel.name}" for name in IN_WHEEL if name not in inside]
    problems += [f"{name} should not be in {wheel.name}" for name in inside if NOT_IN_WHEEL.search(name)]
    problems += [f"{name} is missing in {sdist.name}" for name in IN_SDIST if name not in packed]
    if problems:
        sys.exit("\n".join(problems))
    return wheel


def check_installed(wheel: Path) -> None:
    """Install the wheel alone, without any extra, and run its commands as a user without a store."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        venv.create(Path(folder) / "venv", with_pip=True)
        scripts = Path(folder) / "venv" / "bin"
        run([scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel])
        environ = {"HOME": str(home), "PATH": f"{scripts}:/usr/bin:/bin"}
        for words, said in COMMANDS:
            if words[:2] == ("admin", "plugin") and shutil.which("gcc") is None:
                print("not tested: ncclt admin plugin build, there is no gcc")
                continue
            printed = run([scripts / "ncclt", *words], env=environ, cwd=folder)
            if said not in printed:
                sys.exit(f"ncclt {' '.join(words)} of the installed wheel does not print {said!r}:\n{printed}")
            print(f"ok: ncclt {' '.join(words)}")
        asked = ("env", "--cluster", "dgx-h100", "--model", "bert")
        done = subprocess.run([scripts / "ncclt", *asked], env=environ, cwd=folder, capture_output=True, text=True)
        if (done.returncode, done.stdout) != (3, ""):
            sys.exit(f"ncclt {' '.join(asked)} should find nothing (3), not {done.returncode}: {done.stderr}")
        print("ok: ncclt env of a workload that was not tuned: exit code 3")


def release(wheel: Path) -> None:
    """Check what must hold before an upload, and print the upload."""
    version = wheel.name.split("-")[1]
    problems = []
    if run(["git", "status", "--porcelain"], cwd=ROOT):
        problems.append("the working tree has changes that are not committed")
    if run(["git", "tag", "--list", f"v{version}"], cwd=ROOT):
        problems.append(f"the tag v{version} exists: raise __version__ in tuner/ncclt/__init__.py")
    if not re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M):
        problems.append(f"CHANGELOG.md has no section `## {version}`: rename `## Unreleased`")
    if "linux" in wheel.name and "manylinux" not in wheel.name:
        problems.append(f"{wheel.name}: PyPI takes manylinux wheels only")
    if wheel.name.endswith("-none-any.whl"):
        problems.append("the wheel has no compiled plugin: build it where there is gcc")
    print(f"\nwould be uploaded as ncclt {version}:")
    for file in sorted(DIST.iterdir()):
        print(f"  {hashlib.sha256(file.read_bytes()).hexdigest()}  {file.stat().st_size:>9,} bytes  {file.name}")
    print("\nwith, after docs/internals/release.md:")
    print(f"  git tag -s v{version} -m v{version} && git push origin v{version}")
    print(f"  build/tools/bin/twine upload dist/ncclt-{version}*")
    if problems:
        sys.exit("\nnot ready:\n" + "\n".join(f"  {problem}" for problem in problems))


def pins() -> None:
    """Write requirements.txt of each image: every package with its hashes, so that an image is what was tested.

    PyTorch is left out: its builds for CPU and CUDA come from indexes of their own.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]

    def needed(extra: str) -> list[str]:
        found = []
        for line in extras[extra]:
            inner = re.fullmatch(r"ncclt\[(\w+)\]", line)
            found += needed(inner[1]) if inner else [line]
        return found

    for image, extra in IMAGES.items():
        lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
        lines += [*needed(extra), *needed("jobs")]
        target = ROOT / image / "requirements.txt"
        wanted = "\n".join(line for line in lines if not line.startswith("torch"))
        run([Path(sys.executable).parent / "uv", *PIN, "-o", target, "-"], input=wanted, cwd=ROOT)
        print(f"{target.relative_to(ROOT)}: {target.read_text(encoding='utf-8').count('==')} packages")


def main() -> None:
    """Build, check, and with --release print what would be uploaded."""
    parser = argparse.ArgumentParser(description="Build and check the wheel and the sdist.")
    parser.add_argument("--release", action="store_true", help="check also what must hold before an upload")
    parser.add_argument("--pins", action="store_true", help="only write the requirements of the images")
    options = parser.parse_args()
    if options.pins:
        pins()
        return
    build()
    wheel = check_contents()
    check_installed(wheel)
    if options.release:
        release(wheel)
    else:
        print("\n".join(f"dist/{file.name}" for file in sorted(DIST.iterdir())))


if __name__ == "__main__":
    main()
