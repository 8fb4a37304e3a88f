"""Keeps the ranks of the PyTorch worker alive: a controller sends settings, and each takes effect without a relaunch.

Only rank 0 is connected to the controller; the other ranks receive everything from it over the rendezvous store. A
setting takes effect in one of two ways, on all ranks before the next collective begins:

- through a table in memory of each rank that NCCL's tuner plugin reads at every call;
- through variables that NCCL reads for every communicator: all communicators are closed on all ranks before any
  variable changes, because NCCL's own threads read variables and none may run meanwhile, and are made again afterwards.

Shipped beside `ncclt_torch_worker.py`, which passes itself as `worker`; like that it needs only Python 3.9 and PyTorch
2.6. Not tested on a GPU; tested on gloo.
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
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

IDLE_S = 5.0  # how often idle ranks check that all of them are still alive
CONNECT_S = 60.0
TABLE_VARIABLE, REPORT_VARIABLE = "NCCLT_POLICY_SHM", "NCCLT_PLUGIN_REPORT"  # of the plugin
FOLDER, NAME = Path("/dev/shm"), "ncclt-torch-"  # noqa: S108  folders there are readable by their owner only
FRESH_S = 60.0  # a folder this young may not have been locked yet by the rank that makes it


def persist(worker: Any, job: Any, options: argparse.Namespace, report: Any) -> None:
    """Run what the controller sends until it ends the session or goes away.

    Raises:
        RefusedError: of the worker, on all ranks: the controller has gone away or is not authentic.
    """
    connection, problem = None, ""
    if job.place.rank == 0:
        module = worker.load(options.connection)
        try:
            token = options.token.read_bytes().strip()
            connection = module.connect(options.controller, token, within_s=CONNECT_S)
        except (OSError, module.RankConnectionError) as error:
            problem = str(error)
    job.agreement.require(problem)
    RankSession(worker, job, options, report, connection).run()


class RankSession:
    """One rank between two settings.

    Args:
        worker: the module that started this one.
        job: what its ranks know about each other.
        options: of the command line.
        report: of this rank.
        connection: to the controller; only on rank 0.
    """

    def __init__(self, worker: Any, job: Any, options: argparse.Namespace, report: Any, connection: Any) -> None:
        self._worker, self._job, self._options = worker, job, options
        self._report, self._connection = report, connection
        self._agreement = job.agreement
        self._groups: Any = None
        self._made = 0
        self._brought: dict[str, str | None] = {}  # variables as they were before the first trial that set them
        self._files = variables_of_files(os.environ)
        equal = dict(job.own["equal"])
        if version := loaded_nccl():
            equal["version of NCCL"] = version
        self._own = {**job.own, "equal": equal}
        self._table: RankTable | None = None
        self._reports: Path | None = None
        self._environment: dict[str, Any] = {}
        self._gone = ""

    def run(self) -> None:
        """Run the controller's orders until the end."""

        def end(number: int, _frame: object) -> None:
            """Remove the reports when the launcher ends this rank."""
            self._remove_reports()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, end)
        gc.freeze()  # PyTorch's own objects: scanning them after every trial would cost a tenth of a second
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
            self._remove_reports()
        if order["reason"]:
            raise self._worker.RefusedError(order["reason"])

    def _begin(self) -> None:
        """Make the shared table if one is requested, and report to the controller that trials may come."""
        self._meet()
        order: Any = {"do": "wait"}
        while order["do"] == "wait":
            order = self._agreement.reach(None, lambda _: self._next_order())
        problem = ""
        if order["do"] == "begin" and order["table"]:
            try:
                self._table = RankTable(order["table"])
                os.environ[TABLE_VARIABLE] = self._table.path
                if self._job.place.rank == 0:
                    self._reports = make_reports_folder()
                    os.environ[REPORT_VARIABLE] = str(self._reports)
            except OSError as error:
                problem = f"no shared table: {error}"
        self._agreement.require(problem)
        self._agreement.require(self._missing() if self._table is not None else "")
        reports = str(self._reports or "")
        self._say({"ready": 0, "environment": self._environment, "reports": reports})

    def _meet(self) -> None:
        """Compare this rank with the others, and continue only if all of them can work together."""
        agreed = self._agreement.reach(self._own, self._worker.examine)
        if agreed["problem"]:
            raise self._worker.RefusedError(agreed["problem"])
        self._environment = {"backend": self._options.backend, **agreed}
        self._report.document["environment"] = self._environment

    def _missing(self) -> str:
        """Return the reason against choosing as the others do: ranks that disagree hang or send wrong data."""
        me = f"rank {self._job.place.rank} on {self._own['host']}"
        library = os.environ.get("NCCL_TUNER_PLUGIN", "")
        lacks = "/" in library and not Path(library).is_file()
        return f"{me} does not find {library} (copy it there, or use --through variables)" if lacks else ""

    def _next_order(self) -> Any:
        """Return the next order; never fails, because every rank has to receive the end."""
        if not self._gone:
            try:
                return self._connection.receive(min(IDLE_S, self._options.timeout_s / 4)) or {"do": "wait"}
            except Exception as error:  # noqa: BLE001  no failure may keep the others waiting
                self._gone = f"the controller: {error}"
        return {"do": "end", "reason": self._gone}

    def _say(self, document: Mapping[str, Any]) -> None:
        if self._connection is None or self._gone:
            return
        try:
            self._connection.send(document)
        except Exception as error:  # noqa: BLE001  the next order will be the end
            self._gone = f"the controller: {error}"

    def _trial(self, order: Mapping[str, Any]) -> None:
        """Apply one setting, measure under it, and answer."""
        self._agreement.reach(None, lambda _: None)  # all ranks are alive; failures after this are the setting's
        if self._job.place.rank == 0:
            # Outputs belong to the trial whose line precedes them.
            print(order["line"], flush=True)  # noqa: T201
            print(order["line"], file=sys.stderr, flush=True)  # noqa: T201
        self._say({"begun": order["number"]})
        self._report.document.update(environment=self._environment, beside={}, measurements=[])
        self._report.document.pop("error", None)
        self._report.doing = ""
        self._report.begin()
        failure, decisions, began_s = "", None, time.monotonic()
        try:
            self._apply(order)
            self._measure(order)
            if order["attest"]:
                decisions = self._attest()
        except self._worker.RefusedError as error:  # on every rank: nothing hangs, and the next trial may come
            failure = self._report.failure(str(error))
        self._say(
            {
                "done": order["number"],
                "lines": list(self._report.lines()) if self._job.place.rank == 0 else [],
                "said": failure,
                "seconds": time.monotonic() - began_s,
                "decisions": decisions,
            }
        )
        gc.collect()  # nothing is collected while something is measured

    def _apply(self, order: Mapping[str, Any]) -> None:
        if order["level"] not in ("call", "communicator") or (order["level"] == "call" and order["variables"]):
            raise self._worker.RefusedError("this cannot change in running ranks")
        if order["table"] is not None:
            if self._table is not None:
                self._table.publish(**order["table"])
            self._agreement.reach(None, lambda _: None)  # every rank has it before any of them calls
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

            torch.cuda.synchronize(self._job.device)  # no work of this trial may run when the next one begins

    def _set(self, name: str, value: str | None) -> None:
        """Set a variable of NCCL, or restore its value of the environment or else of NCCL's files."""
        if not re.fullmatch(r"NCCL_[A-Z0-9_]{1,60}", name):
            raise self._worker.RefusedError(f"{name[:80]} is not a variable of NCCL")
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
        """Return the plugin's decisions since the last call: it reports when its communicators close."""
        self._close_groups()
        if REPORT_VARIABLE not in os.environ:
            return None
        folder, lines = Path(os.environ[REPORT_VARIABLE]), []
        for file in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
            lines += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            file.unlink()
        return lines

    def _remove_reports(self) -> None:
        if self._reports is not None:
            shutil.rmtree(self._reports, ignore_errors=True)


class RankTable:
    """The table of this rank, laid out by the controller; this rank only writes its bytes to their offsets.

    It is in anonymous, sealed memory: a file that is truncated while the plugin has it mapped would end the rank with
    SIGBUS.
    """

    def __init__(self, layout: Mapping[str, Any]) -> None:
        size = int(layout["bytes"])
        file = os.memfd_create("ncclt-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(file, 0o600)  # memory is made writable for all, and the plugin trusts no such file
        # Written, not only extended: lack of memory must show here and not as SIGBUS in a call.
        os.write(file, base64.b64decode(layout["head"]).ljust(size, b"\0"))
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = mmap.mmap(file, size)
        self.path = f"/proc/self/fd/{file}"  # open for as long as this process lives

    def publish(self, *, at: int, image: str, generation: str) -> None:
        """Write a table into its slot, and then its generation in one aligned store of 8 bytes."""
        table, number = base64.b64decode(image), base64.b64decode(generation)
        self._memory[at : at + len(table)] = table
        self._memory[: len(number)] = number


def make_reports_folder() -> Path:
    """Make the folder in which the plugin of this rank reports what it decided.

    It stays locked for as long as this process lives, so that a later one can recognise what was left behind.
    """
    for path in FOLDER.glob(f"{NAME}*"):
        _remove_stale(path)
    folder = Path(tempfile.mkdtemp(prefix=NAME, dir=FOLDER))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)  # open for as long as this process lives
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder


def variables_of_files(
    environ: Mapping[str, str], *, home: Path | None = None, system: Path = Path("/etc/nccl.conf")
) -> dict[str, str]:
    """Return the variables that NCCL reads from its files unless the environment has them.

    It reads them once in the life of a process (setEnvFile in src/misc/param.cc): a variable that a trial had set and
    that is then unset would not get its value of the file again.

    Args:
        environ: names the user's file in NCCL_CONF_FILE.
        home: where it is looked for otherwise; None = that of the account, as NCCL does.
        system: the site's file.
    """
    named = environ.get("NCCL_CONF_FILE")
    facts: dict[str, str] = {}
    files = [Path(named)] if named else []
    with contextlib.suppress(KeyError):  # a user id without an account, as in many containers, has no file
        if not named:
            files = [(home or Path(pwd.getpwuid(os.getuid()).pw_dir)) / ".nccl.conf"]
    for file in (*files, system):
        with contextlib.suppress(OSError):
            for line in file.read_bytes().split(b"\n"):
                name, equals, value = line.partition(b"=")
                if equals and not line.startswith(b"#"):
                    facts.setdefault(os.fsdecode(name), os.fsdecode(value[:1023]))
    return facts


def loaded_nccl(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the version of the NCCL library that this process has loaded, `2.30.4`; empty where there is none.

    PyTorch reports the version of the headers that it was built with, and a newer or older library may be loaded.
    """
    files = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/libnccl.so" in line}
    number = ctypes.c_int()
    for file in sorted(files):
        if ctypes.CDLL(file).ncclGetVersion(ctypes.byref(number)) == 0:
            # NCCL_VERSION in nccl.h: another form up to 2.8.
            major, remainder = divmod(number.value, 10_000 if number.value >= 10_000 else 1000)
            return f"{major}.{remainder // 100}.{remainder % 100}"
    return ""


def _remove_stale(path: Path) -> None:
    """Remove what a killed rank has left: it is no longer locked."""
    with contextlib.suppress(OSError):  # another user's, locked, not a folder, or removed meanwhile
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if time.time() - os.fstat(folder).st_mtime >= FRESH_S:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(folder)
