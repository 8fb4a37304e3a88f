"""A study as one Slurm batch job, submitted from a login node."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ncclt.cli.render import say
from ncclt.core.cluster import Cluster
from ncclt.errors import UsageError, hide_passwords
from ncclt.launch.launcher import JobShape
from ncclt.launch.process.process_tree import MARK_VARIABLE
from ncclt.measure.open_testbed import describe_variables
from ncclt.measure.redact import words_without_secrets
from ncclt.measure.target import Target

if TYPE_CHECKING:
    from ncclt.store import Store

_FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
"""Variables that say where the files of a user are."""


def submit_study(cluster: Cluster, store: Store, target: Target, *, wait: bool, study: str, dry_run: bool) -> int:
    """Submit this very command line as one job, or find the job of the same study, and follow it.

    Returns:
        the job's exit code.

    Args:
        cluster: sized to one trial; the job gets its nodes once for each trial that runs at the same time.
        store: the job must reach it too.
        target: resolved.
        study: id of the study, as far as it is known without its nodes; empty = a job that runs is not looked for.

    Raises:
        UsageError: sbatch is missing or refuses, or the nodes would not see the store, or not its password.
    """
    from ncclt.launch.slurm.sbatch import BatchRequest, node_local_folder, plan_batch, submit_and_follow

    path = None if "NCCLT_STORE_IS_SHARED" in os.environ else store.path
    if path is not None and (why := node_local_folder(path)):
        refusal = UsageError(
            f"the job would keep its trials where they cannot be found again: {why}",
            hint="name a store that all nodes see with --storage, or set NCCLT_STORE_IS_SHARED=1 if they see this",
        )
        if not dry_run:
            raise refusal
        say(f"ncclt: without --dry-run, this stops: {refusal.message}\n  hint: {refusal.hint}")
    options = target.launcher_options
    extra = options.get("sbatch_arg", ())
    names_gpus = any(argument.startswith(("--gpus", "--gres")) for argument in extra)
    words = [word for word in sys.argv[1:] if word not in ("--dry-run", "--verbose", "-v")]
    if store.path is None:
        words = _storage_by_environment(words)
    request = BatchRequest(
        command=(sys.executable, "-m", "ncclt", *words),
        shape=JobShape(nodes=cluster.nodes * target.parallel, processes_per_node=cluster.gpus_per_node),
        gpus_per_node=None if target.backend == "gloo" or names_gpus else cluster.gpus_per_node,
        time_limit=options.get("time_limit"),
        job_name="ncclt-tune",
        folder=Path.cwd(),
        extra=extra,
        variables=_variables(store, words, extra, os.environ),
        comment=f"ncclt {hashlib.sha256(f'{study} {store.shown}'.encode()).hexdigest()[:12]}" if study else "",
    )
    if dry_run:
        plan = plan_batch(request)
        print(f"# {' '.join(plan.argv)}\n{plan.script}", end="")
        return 0
    export = _exported(extra, os.environ)
    inherited = os.environ if "ALL" in export else {name: os.environ[name] for name in export if name in os.environ}
    for note in describe_variables(target, inherited):
        say(f"ncclt: {note}")
    # The job outlives this program; on SIGTERM and SIGHUP `submit_and_follow` says so.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    return submit_and_follow(request, wait=wait, show=sys.stdout.write, say=sys.stderr.write)


def _storage_by_environment(words: list[str]) -> list[str]:
    """Remove --storage where its URL holds a password, and pass the URL in the environment, which the job inherits.

    Slurm shows the script of a job to other users, and every user of a node sees its command lines.
    """
    public = []
    following = iter(words)
    for word in following:
        name, equals, url = word.partition("=")
        if name != "--storage" or hide_passwords(url := url if equals else next(following, "")) == url:
            public += [word] if equals or name != "--storage" else [word, url]
        else:
            os.environ["NCCLT_STORAGE"] = url
    return public


def _variables(
    store: Store, words: Sequence[str], sbatch_args: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables of the script: every option that comes from a variable, and the store.

    Raises:
        UsageError: one of them is secret, and the job would not inherit it.
    """
    names = [name for name in environ if (name.startswith("NCCLT_") and name != MARK_VARIABLE) or name in _FOLDERS]
    variables = {name: environ[name] for name in sorted(names)}
    if store.path is not None and not any(word.partition("=")[0] == "--storage" for word in words):
        variables["NCCLT_STORAGE"] = f"sqlite:///{store.path.absolute()}"
    secret = [
        name for name, value in variables.items() if words_without_secrets((f"{name}={value}",))[0] != f"{name}={value}"
    ]
    export = _exported(sbatch_args, environ)
    if dropped := [name for name in secret if name not in export and "ALL" not in export]:
        raise UsageError(
            f"--export={','.join(export)} keeps {', '.join(dropped)} from the job, and a script must not hold secrets",
            hint="use --launcher-option sbatch-arg=--export=ALL, or put the password into ~/.pgpass",
        )
    return tuple((name, value) for name, value in sorted(variables.items()) if name not in secret)


def _exported(sbatch_args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that a job inherits; `ALL` stands for every one."""
    exports = [word.partition("=")[2] for word in sbatch_args if word.startswith("--export=")]
    return [environ.get("SBATCH_EXPORT", "ALL"), *exports][-1].split(",")


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
