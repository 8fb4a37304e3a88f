"""Install each extra of the wheel in dist/ alone, and what each image installs, and start all that they promise.

The template of a third party's plugins is installed beside the wheel, and its tests run there.

A package that only another extra brings, or an image that ends as it starts, shows nowhere else: the tests run with
everything installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]

WITHIN_S = 120.0

JOB = "--cluster mi355x-2x8 --model bert"

PROMISES: dict[str, tuple[tuple[str, str], ...]] = {
    "tune": (
        (f"tune {JOB} --launcher replay --study first", "keep-default"),
        ("tune --model bert --nodes 2 --launcher simulate --trials 3 --blocks 3", "SIMULATED"),
        ("studies show first", "keep-default"),
        (f"advise {JOB} --step-ms 200 --compute-ms 180", "bert"),
        ("doctor --from healthy_h100", "verdict"),
        ("admin plugin build --into plugin", "libnccl-tuner-ncclt.so"),
    ),
    "store": (
        ("admin store migrate", "is at"),
        ("studies list", "recorded"),
        (f"env {JOB} --nodes 2 --gpus-per-node 8 --nccl-version 2.28.3 --allow recorded", "NCCLT_RECOMMENDATION"),
        ("admin store export export.jsonl.gz", ""),
        ("admin keys create --storage sqlite:///keys.db", "ncclt_"),
    ),
    "api": (("report first -o report.html", "report.html"),),
    "jobs": (
        (f"admin jobs submit {JOB} --again", "queued"),
        ("admin jobs list", "queued"),
        ("studies list", "recorded"),
    ),
    "models": (("profile model transformers:bert", "all_reduce"),),
}
"""Extra -> commands that it is for, in order, with a word of what they print; they share a store."""

SERVICE = """
import fcntl, json, pathlib, socket, struct, subprocess, sys, time, urllib.error, urllib.request

with socket.socket() as any_socket:  # a network of its own has a loopback interface that is down: SIOCSIFFLAGS
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
argv, key = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])


def status(path, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:8080{path}", headers=headers)).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


with subprocess.Popen(argv) as service:
    until_s = time.monotonic() + 60
    while service.poll() is None and status("/readyz") != 200 and time.monotonic() < until_s:
        time.sleep(0.1)
    found = [status(path) for path in ("/readyz", "/v1/studies")]
    if key.exists():
        found.append(status("/v1/studies", Authorization=f"Bearer {key.read_text().strip()}"))
    service.terminate()
if found != [200, 401, 200]:
    sys.exit(f"ready, without a key, with the first key: {found}, not 200, 401, 200; exit code {service.returncode}")
"""
"""Starts a service in a network of its own, where it may listen on every address, and asks it."""


class Installation:
    """A virtual environment, in which commands run as a user's whose home is empty at first.

    Args:
        folder: for the environment.
        home: shared by several.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        venv.create(folder)
        self._python, self._home = folder / "bin" / "python", home
        self.environ = {"HOME": str(home), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}

    def install(self, *words: str | Path) -> None:
        """Install by the pip of this process, which an environment without pip lets wait less."""
        options = ("--quiet", "--disable-pip-version-check", "--no-warn-script-location")
        pip = [sys.executable, "-m", "pip", "--python", str(self._python)]
        self._run([*pip, "install", *options, *map(str, words)], {})

    def run(self, argv: list[str]) -> str:
        """Run a program of the environment, which must succeed, and return all that it printed."""
        return self._run(argv, self.environ)

    def ncclt(self, *words: str, said: str = "", **variables: str) -> str:
        """Run a command, which must succeed and print a word, and return all that it printed."""
        printed = self._run(["ncclt", *words], {**self.environ, **variables})
        if said not in printed:
            sys.exit(f"ncclt {' '.join(words)} does not print {said!r}:\n{printed}")
        return printed

    def _run(self, argv: list[str], environ: Mapping[str, str]) -> str:
        done = subprocess.run(
            argv,
            env=environ or None,
            cwd=self._home if environ else ROOT,
            timeout=WITHIN_S if environ else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode or "Traceback" in done.stdout:
            sys.exit(f"{' '.join(argv)} failed ({done.returncode}):\n{done.stdout}")
        return done.stdout


def check_extras(wheel: Path, folder: Path, home: Path) -> None:
    """Install each extra alone and run its commands."""
    for extra, commands in PROMISES.items():
        alone = Installation(folder / extra, home)
        alone.install("--constraint", "constraints.txt", f"{wheel}[{extra}]")
        for command, said in commands:
            alone.ncclt(*command.split(), said=said)
        print(f"ok: [{extra}] alone: {len(commands)} commands", flush=True)


def check_plugin_template(wheel: Path, folder: Path, home: Path) -> None:
    """Install the template of plugins as a third party does, and run its tests."""
    template = ROOT / "docs" / "plugin-author" / "template"
    installed = Installation(folder / "plugins", home)
    installed.install("--constraint", "constraints.txt", f"{wheel}[tune]", template, "pytest")
    installed.run(["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(template / "tests")])
    print("ok: the tests of the template of plugins", flush=True)


def install_image(name: str, wheel: Path, folder: Path, home: Path) -> Installation:
    """Install what the Dockerfile of an image installs, without PyTorch, which nodes alone need."""
    image = Installation(folder / f"image-{name}", home)
    image.install("--require-hashes", "--requirement", f"{name}/requirements.txt")
    image.install("--no-deps", wheel)
    return image


def check_service(image: Installation, folder: Path) -> None:
    """Run the command of the service's image as it is shipped, with an empty volume."""
    text = (ROOT / "api" / "Dockerfile").read_text(encoding="utf-8")
    (volume,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    command = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[-1].replace(volume, str(folder)))
    variables = dict(re.findall(rf"(\w+)=({re.escape(volume)})\b", text))
    own_network = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*own_network, "true"], capture_output=True, check=False).returncode:
        print("not tested: the command of the image of the service; this machine allows no network of its own")
        return
    folder.mkdir()
    environ = {**image.environ, **{name: str(folder) for name in variables}}
    argv = [*own_network, "python", "-c", SERVICE, json.dumps(command), command[-1]]
    done = subprocess.run(
        argv, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode or "Traceback" in done.stdout:
        sys.exit(f"{' '.join(command)} of api/Dockerfile does not serve:\n{done.stdout}")
    print(f"ok: {' '.join(command)}: with an empty volume, closed to all but the first key", flush=True)


def check_worker(image: Installation, service: Installation, folder: Path) -> None:
    """Run the worker of docker-compose.yml until it has done a job."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    storage = {"NCCLT_STORAGE": f"sqlite:///{folder / 'compose.db'}"}
    service.ncclt(*services["migrate"]["command"][1:], **storage)
    service.ncclt("admin", "jobs", "submit", *JOB.split(), "--trials", "4", "--blocks", "3", **storage)
    with (
        (folder / "worker.log").open("w+", encoding="utf-8") as log,
        subprocess.Popen(
            services["worker"]["command"], env={**image.environ, **storage}, cwd=folder, stdout=log, stderr=log
        ) as worker,
    ):
        try:
            until_s, said = time.monotonic() + WITHIN_S, ""
            while " done " not in said and worker.poll() is None and time.monotonic() < until_s:
                time.sleep(1.0)
                said = image.ncclt(*services["worker"]["healthcheck"]["test"][2:], **storage)
        finally:
            worker.send_signal(signal.SIGTERM)
    if " done " not in said or worker.returncode:
        sys.exit(f"the worker did not do its job ({worker.returncode}):\n{said}\n{(folder / 'worker.log').read_text()}")
    print("ok: the worker of docker-compose.yml did a job", flush=True)


def main() -> None:
    """Check the extras, then the images."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        (home / "healthy_h100").symlink_to(ROOT / "tests" / "golden" / "doctor" / "healthy_h100")
        check_extras(wheel, folder, home)
        check_plugin_template(wheel, folder, home)
        service, worker = (install_image(image, wheel, folder, home) for image in ("api", "tuner"))
        check_service(service, folder / "volume")
        check_worker(worker, service, folder)


if __name__ == "__main__":
    main()
