"""Keeps the ranks of the PyTorch worker alive: a controller sends settings, and each takes effect without a relaunch.

Only rank 0 speaks with the controller; the other ranks hear everything from it over the rendezvous store. A setting
comes into force in one of two ways, and on all ranks before the next collective begins:

- through a table in shared memory that NCCL's tuner plugin reads at every call: one rank of each node writes it;
- through variables that NCCL reads for every communicator: all communicators are closed on all ranks before any
  variable changes, for NCCL's own threads read variables and none may run meanwhile, and are made anew afterwards.

Shipped beside `ncclt_torch_worker.py`, which hands itself over as `worker`; like that it needs Python 3.9 and PyTorch
2.6 alone. Not tried on a GPU: proven on gloo.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import fcntl
import gc
import json
import mmap
import os
import pwd
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IDLE_S = 5.0  # how often ranks look whether all of them are still there while nothing is to be done
CONNECT_S = 60.0
TABLE_VARIABLE, REPORT_VARIABLE = "NCCLT_POLICY_SHM", "NCCLT_PLUGIN_REPORT"  # of the plugin
FOLDER, NAME = Path("/dev/shm"), "ncclt-torch-"  # noqa: S108  files are made there by O_EXCL and for their owner alone
FRESH_S = 60.0  # a file so young may not have been locked yet by the rank that makes it


def stay(worker: Any, job: Any, options: argparse.Namespace, report: Any) -> None:
    """Do what the controller sends until it says that this is enough, or is gone.

    Raises:
        RefusedError: of the worker, on all ranks: the controller is gone or is none.
    """
    channel, problem = None, ""
    if job.place.rank == 0:
        module = worker.load(options.channel)
        try:
            token = options.token.read_bytes().strip()
            channel = module.connect(options.controller, token, within_s=CONNECT_S)
        except (OSError, module.ChannelError) as error:
            problem = str(error)
    job.agreement.require(problem)
    Session(worker, job, options, report, channel).run()


class Session:
    """One rank between two settings.

    Args:
        worker: the module that started this one.
        job: what its ranks know of one another.
        options: of the command line.
        report: of this rank.
        channel: to the controller; rank 0 alone has one.
    """

    def __init__(self, worker: Any, job: Any, options: argparse.Namespace, report: Any, channel: Any) -> None:
        self._worker, self._job, self._options, self._report, self._channel = worker, job, options, report, channel
        self._agreement = job.agreement
        self._groups: Any = None
        self._made = 0
        self._brought: dict[str, str | None] = {}  # variables as they were before the first trial that set them
        self._files = variables_of_files(os.environ)
        equal = dict(job.own["equal"])
        if version := loaded_nccl():
            equal["version of NCCL"] = version
        self._own = {**job.own, "equal": equal}
        self._table: Table | None = None
        self._environment: dict[str, Any] = {}
        self._gone = ""

    def run(self) -> None:
        """Do what is asked, until the end."""
        signal.signal(signal.SIGTERM, self._end_by_signal)
        gc.freeze()  # PyTorch's own objects: looking through them after every trial would cost a tenth of a second
        try:
            self._begin()
            while True:
                order = self._agreement.reach(None, lambda _: self._next_order())
                if order["do"] == "end":
                    break
                if order["do"] == "trial":
                    self._trial(order)
            self._close_groups()
        finally:
            if self._table is not None:
                self._table.remove()
        if order["reason"]:
            raise self._worker.RefusedError(order["reason"])

    def _begin(self) -> None:
        """Make the shared table where one is wanted, and tell the controller that trials may come."""
        self._meet()
        order: Any = {"do": "wait"}
        while order["do"] == "wait":
            order = self._agreement.reach(None, lambda _: self._next_order())
        problem, path = "", ""
        if order["do"] == "begin" and order["table"]:
            node = next(ranks for ranks in self._environment["nodes"] if self._job.place.rank in ranks)
            path = str(FOLDER / f"{NAME}{_file_word(order['name'])}-{node[0]}")
            os.environ[TABLE_VARIABLE] = path
            if node[0] == self._job.place.rank:
                try:
                    self._table = Table(Path(path), order["table"])
                except OSError as error:
                    problem = f"no shared table: {error}"
            if self._job.place.rank == 0:
                os.environ[REPORT_VARIABLE] = f"{path}.reports"
        self._agreement.require(problem)
        self._agreement.require(self._missing() if path else "")
        mine = path if self._table is not None else ""
        tables = self._agreement.reach(mine, lambda paths: [path for path in paths if path])
        self._say({"ready": 0, "environment": self._environment, "tables": tables})

    def _meet(self) -> None:
        """Compare what this rank has with what the others have, and go on only if all of them can work together."""
        found = self._agreement.reach(self._own, self._worker.examine)
        if found["problem"]:
            raise self._worker.RefusedError(found["problem"])
        self._environment = {"backend": self._options.backend, **found}
        self._report.document["environment"] = self._environment

    def _missing(self) -> str:
        """Say what this rank lacks to choose as the others will: ranks that disagree hang or send wrong data."""
        me = f"rank {self._job.place.rank} on {self._own['host']}"
        path, library = os.environ[TABLE_VARIABLE], os.environ.get("NCCL_TUNER_PLUGIN", "")
        if not os.access(path, os.R_OK):
            return f"{me} does not see {path}, the shared table of its node: does each container have a /dev/shm?"
        return f"{me} does not find {library}" if "/" in library and not Path(library).is_file() else ""

    def _next_order(self) -> Any:
        """Return what to do next; never fails, for every rank has to hear of the end."""
        if not self._gone:
            try:
                return self._channel.receive(min(IDLE_S, self._options.timeout_s / 4)) or {"do": "wait"}
            except Exception as error:  # noqa: BLE001  whatever it is, it must not keep the others waiting
                self._gone = f"the controller: {error}"
        return {"do": "end", "reason": self._gone}

    def _say(self, document: Mapping[str, Any]) -> None:
        if self._channel is None or self._gone:
            return
        try:
            self._channel.send(document)
        except Exception as error:  # noqa: BLE001  the next order will be the end
            self._gone = f"the controller: {error}"

    def _trial(self, order: Mapping[str, Any]) -> None:
        """Put one setting into force, measure under it, and answer."""
        self._agreement.reach(None, lambda _: None)  # all ranks live, and from here on the setting is to blame
        if self._job.place.rank == 0:
            # Outputs belong to the trial behind whose line they stand.
            print(order["line"], flush=True)  # noqa: T201
            print(order["line"], file=sys.stderr, flush=True)  # noqa: T201
        self._say({"begun": order["number"]})
        self._report.document.update(environment=self._environment, beside={}, measurements=[])
        self._report.document.pop("error", None)
        self._report.doing = ""
        self._report.begin()
        said, decisions, began_s = "", None, time.monotonic()
        try:
            self._apply(order)
            self._measure(order)
            if order["attest"]:
                decisions = self._attest()
        except self._worker.RefusedError as error:  # every rank knows: nothing hangs, and the next trial may come
            said = self._report.failure(str(error))
        self._say(
            {
                "done": order["number"],
                "lines": list(self._report.lines()) if self._job.place.rank == 0 else [],
                "said": said,
                "seconds": time.monotonic() - began_s,
                "decisions": decisions,
            }
        )
        gc.collect()  # nothing is collected while something is measured

    def _apply(self, order: Mapping[str, Any]) -> None:
        if order["level"] not in ("call", "communicator") or (order["level"] == "call" and order["variables"]):
            raise self._worker.RefusedError("this cannot come into force in ranks that run already")
        if order["table"] is not None:
            if self._table is not None:
                self._table.publish(**order["table"])
            self._agreement.reach(None, lambda _: None)  # it lies on every node before anybody calls
        if order["level"] == "communicator":
            self._close_groups()
            self._agreement.reach(None, lambda _: None)  # no rank has a communicator now
            for name, value in order["variables"].items():
                self._set(name, value)
            versions = {name: text for name, text in self._own["equal"].items() if not name.startswith("NCCL_")}
            now = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
            self._own["equal"] = {**versions, **now}
            self._meet()

    def _measure(self, order: Mapping[str, Any]) -> None:
        options = self._worker.parse(order["arguments"])
        options.measuring = self._options.measuring
        if self._groups is None:
            self._made += 1
            self._groups = self._job.open_groups(f"groups of {self._made}")
        self._worker.measure_all(options, self._report, self._agreement, self._groups, self._job.device)
        if self._job.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._job.device)  # nothing of this trial may run when the next one begins

    def _set(self, name: str, value: str | None) -> None:
        """Set a variable of NCCL, or put it back to what the environment, or else a file of NCCL's, had brought."""
        if not re.fullmatch(r"NCCL_[A-Z0-9_]{1,60}", name):
            raise self._worker.RefusedError(f"{name[:80]} is no variable of NCCL")
        self._brought.setdefault(name, os.environ.get(name, self._files.get(name)))
        value = self._brought[name] if value is None else value
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def _close_groups(self) -> None:
        if self._groups is not None:
            import torch.distributed as dist

            dist.destroy_process_group()
            self._groups = None

    def _attest(self) -> list[Any] | None:
        """Return what the plugin decided since it was last asked: it tells when its communicators close."""
        self._close_groups()
        if REPORT_VARIABLE not in os.environ:
            return None
        folder, lines = Path(os.environ[REPORT_VARIABLE]), []
        for file in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            lines += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            file.unlink()
        return lines

    def _end_by_signal(self, number: int, _frame: object) -> None:
        """Leave no table behind where the launcher ends this rank."""
        if self._table is not None:
            self._table.remove()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


class Table:
    """The shared table of this node, laid out by the controller; this rank only puts its bytes where they belong.

    Its file stays locked for as long as this process lives, so that the next one can tell what was left behind.
    """

    def __init__(self, path: Path, layout: Mapping[str, Any]) -> None:
        _remove_stale()
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = int(layout["bytes"])
        # Written and not only extended: a full /dev/shm must fail here and not as SIGBUS in a rank.
        written = os.write(self._file, base64.b64decode(layout["head"]).ljust(size, b"\0"))
        if written != size:
            raise OSError(f"{FOLDER} is full")
        self._memory = mmap.mmap(self._file, size)

    def publish(self, *, at: int, image: str, generation: str) -> None:
        """Write a table into its slot, and then its generation in one aligned store of 8 bytes."""
        table, number = base64.b64decode(image), base64.b64decode(generation)
        self._memory[at : at + len(table)] = table
        self._memory[: len(number)] = number

    def remove(self) -> None:
        """Remove the file and the reports beside it; whoever has it open keeps his view."""
        _remove(self._path)


def variables_of_files(
    environ: Mapping[str, str], *, home: Path | None = None, system: Path = Path("/etc/nccl.conf")
) -> dict[str, str]:
    """Return the variables that NCCL takes from its files, where the environment does not have them.

    It reads them once in the life of a process (setEnvFile in src/misc/param.cc): a variable that a trial had set and
    that is then unset would not come back to what the file says.

    Args:
        environ: names the user's file in NCCL_CONF_FILE.
        home: where it is looked for otherwise; None = that of the account, as NCCL does.
        system: the site's file.
    """
    named = environ.get("NCCL_CONF_FILE")
    found: dict[str, str] = {}
    for file in (*([Path(named)] if named else _own_file(home)), system):
        with contextlib.suppress(OSError):
            for line in file.read_bytes().split(b"\n"):
                name, equals, value = line.partition(b"=")
                if equals and not line.startswith(b"#"):
                    found.setdefault(os.fsdecode(name), os.fsdecode(value[:1023]))
    return found


def _own_file(home: Path | None) -> list[Path]:
    """Return the user's file; a user id without an account, as in many containers, has none, and NCCL goes on too."""
    try:
        return [(home or Path(pwd.getpwuid(os.getuid()).pw_dir)) / ".nccl.conf"]
    except KeyError:
        return []


def loaded_nccl(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the version of the NCCL library that this process has loaded, `2.30.4`; empty where there is none.

    PyTorch tells the version of the headers that it was built with, and a newer or older library may take their place.
    """
    files = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/libnccl.so" in line}
    number = ctypes.c_int()
    for file in sorted(files):
        if ctypes.CDLL(file).ncclGetVersion(ctypes.byref(number)) == 0:
            # NCCL_VERSION in nccl.h: another form up to 2.8.
            major, rest = divmod(number.value, 10_000 if number.value >= 10_000 else 1000)
            return f"{major}.{rest // 100}.{rest % 100}"
    return ""


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    shutil.rmtree(f"{path}.reports", ignore_errors=True)


def _remove_stale() -> None:
    """Remove what ranks have left that were killed: nobody locks it any more."""
    for path in FOLDER.glob(f"{NAME}*"):
        with contextlib.suppress(OSError):  # somebody else's, locked, or gone meanwhile
            if not path.is_file() or time.time() - path.stat().st_mtime < FRESH_S:
                continue
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(file)


def _file_word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "_", text)[:80]
