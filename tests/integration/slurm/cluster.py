"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, private to one test session.

Both nodes are this machine; each slurmd has a name and a port of its own. Nothing of the system's own Slurm is used:
configuration, keys, sockets, ports and state are in one temporary folder, which SLURM_CONF points to.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import runpy
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "squeue", "scancel", "scontrol")
NODES = ("n1", "n2")
CPUS = 8

_PATIENT_S = 120.0
_free_port = runpy.run_path(str(Path(__file__).parents[2] / "fakes" / "ports.py"))["free_port"]
_SYSTEM_FOLDERS = ":/usr/sbin:/sbin:/usr/local/sbin"

_CONFIGURATION = """\
ClusterName=ncclt
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/task-prolog
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
KillWait=1
InactiveLimit=0
UnkillableStepTimeout=10
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n1_port} CPUs={cpus} RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n2_port} CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class SlurmCluster:
    """A running Slurm."""

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def exports(self) -> Path:
        """Return the file whose lines a TaskProlog of the site gives to every task, `export NAME=VALUE`; empty."""
        return self.folder / "exports"

    @contextlib.contextmanager
    def exporting(self, **variables: str) -> Iterator[None]:
        """Let the site's TaskProlog set variables in every task of every job."""
        self.exports.write_text("".join(f"export {name}={value}\n" for name, value in variables.items()))
        try:
            yield
        finally:
            self.exports.write_text("")

    def ask(self, *argv: str) -> str:
        """Run one of Slurm's commands and return what it printed."""
        done = self._run(*argv)
        assert done.returncode == 0, f"{argv} failed: {done.stderr}\n{self.logs()}"
        return done.stdout

    @contextlib.contextmanager
    def allocation(self, *options: str, nodes: int = 2) -> Iterator[dict[str, str]]:
        """Hold an allocation and give the environment of a program that runs in it."""
        # Where the nodes are still busy with the job before, this waits. `Granted job allocation 7` goes to stderr.
        granted = self._run("salloc", "--no-shell", f"--nodes={nodes}", "--exclusive", "--job-name=held", *options)
        assert granted.returncode == 0, granted.stderr + self.logs()
        job_id = granted.stderr.rpartition("job allocation")[2].split()[0]
        try:
            node_list = self.ask("squeue", "--noheader", "--job", job_id, "--format", "%N").strip()
            yield self.environment | {"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": node_list}
        finally:
            self._run("scancel", job_id)  # it may be gone already, with one of its nodes

    def steps(self) -> list[str]:
        """Return the names of all running steps, without those that hold an allocation."""
        named = self.ask("squeue", "--noheader", "--steps", "--format", "%j").split()
        return [name for name in named if name not in ("extern", "batch", "interactive")]

    def wait_until_empty(self) -> None:
        """Wait until no job is left."""
        self._wait(lambda: not self.ask("squeue", "--noheader").strip(), "the queue to be empty")
        self._wait(lambda: self._states() == ["idle", "idle"], "both nodes to be idle")

    def logs(self) -> str:
        """Return the ends of all logs, for the message of a failed test."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def start(self) -> None:
        """Start all daemons and wait until both nodes are idle."""
        ports = [_free_port() for _ in range(3)]
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                user=getpass.getuser(),
                folder=self.folder,
                cpus=CPUS,
                controller_port=ports[0],
                n1_port=ports[1],
                n2_port=ports[2],
            )
        )
        self.exports.touch()
        prolog = self.folder / "task-prolog"
        prolog.write_text(f"#!/bin/sh\ncat {self.exports}\n")
        prolog.chmod(0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        # munged dislikes root and folders that others may write to; neither matters for a key that lives for a minute.
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munged.seed",
            "--num-threads=2",
            f"--log-file={self.folder}/munged.file",
        )
        self._wait((self.folder / "munge.socket").exists, "munged")
        configuration = str(self.folder / "slurm.conf")
        self._start("slurmctld", "-D", "-f", configuration)
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir()
            self._start("slurmd", "-D", "-N", node, "-f", configuration)
        self._wait(lambda: self._states() == ["idle", "idle"], "both nodes to be idle")

    def restart_controller(self, *, away_s: float) -> None:
        """Stop slurmctld, and start it again with the jobs that it knew."""
        self._end("slurmctld")
        time.sleep(away_s)
        self._start("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))

    @contextlib.contextmanager
    def without_daemon(self, node: str) -> Iterator[None]:
        """Let a node lose its slurmd; its jobs stay."""
        self._end("slurmd", node)
        try:
            yield
        finally:
            self._start("slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))

    def _end(self, *words: str) -> None:
        (daemon,) = [one for one in self.daemons if set(words) <= set(one.args)]
        self.daemons.remove(daemon)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(_PATIENT_S)

    def stop(self) -> None:
        """End jobs, then daemons, each by its own id."""
        with contextlib.suppress(AssertionError, TimeoutError, subprocess.TimeoutExpired):
            for job_id in self.ask("squeue", "--noheader", "--format", "%i").split():
                self.ask("scancel", job_id)
            self.wait_until_empty()
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, *argv: str) -> None:
        with (self.folder / f"{argv[0]}-{len(self.daemons)}.log").open("ab") as log:
            daemon = subprocess.Popen(
                (*_dying_with_us(), *argv),
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.daemons.append(daemon)

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENT_S
        )

    def _states(self) -> list[str]:
        return self._run("sinfo", "--noheader", "--Node", "--format", "%T").stdout.split()

    def _wait(self, done, what: str) -> None:
        deadline = time.monotonic() + _PATIENT_S
        while not done():
            ended = [d.args for d in self.daemons if d.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise TimeoutError(f"waited in vain for {what}; ended daemons: {ended}\n{self.logs()}")
            time.sleep(0.05)


@contextlib.contextmanager
def started_cluster() -> Iterator[SlurmCluster]:
    """Start a cluster and end it; a second time where somebody took one of its ports in between."""
    with contextlib.ExitStack() as stack:
        for last_try in (False, True):
            # A short path: names of sockets have 107 characters at most.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ncclt-slurm-")))
            folder.chmod(0o755)
            clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
            cluster = SlurmCluster(
                folder=folder,
                environment=clean
                | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"] + _SYSTEM_FOLDERS},
            )
            stack.callback(cluster.stop)
            try:
                cluster.start()
            except TimeoutError:
                if last_try:
                    raise
                continue
            break
        yield cluster


def missing_programs() -> list[str]:
    """Return which of Slurm's programs are not installed here."""
    path = os.environ["PATH"] + _SYSTEM_FOLDERS
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


def _dying_with_us() -> tuple[str, ...]:
    """Words before a command that end it when this process is killed, where util-linux has them."""
    return ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
