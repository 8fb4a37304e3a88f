"""From a job to a result: what `ncclt autotune` decides and does between the stages that are commands of their own."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from ncclt.core.recommendation import Recommendation
from ncclt.core.verification import Verification
from ncclt.core.workload import Workload
from ncclt.deliver.job_info import is_node_launcher, most_nodes, read_shape
from ncclt.errors import StudyStoppedError, UsageError
from ncclt.launch.launcher import Launcher
from ncclt.measure.redact import words_without_secrets
from ncclt.measure.target import Target, gpus_visible
from ncclt.profile.record.plan import Method, RecordPlan, is_open_mpi, plan_recording
from ncclt.profile.record.session import Recording, make_folder, run_recording
from ncclt.profile.views.exposure import gain_bound
from ncclt.prove.comparison import Comparison
from ncclt.prove.proven_side import has_gain, is_unmeasured
from ncclt.prove.step_times import failure_of
from ncclt.store.store import Store


def name_of_job(argv: Sequence[str], *, environ: Mapping[str, str], folder: Path) -> str:
    """Return the name under which a job's workload is kept: another job, another name.

    It depends on the command, the folder it runs in, the shape that its launcher gives it, and the content of the
    Python files that it names; what those import is not looked at.

    Args:
        argv: the job's command.
        environ: of this process.
        folder: in which the command runs.
    """
    scripts = [path for path in (folder / word for word in argv if word.endswith(".py")) if path.is_file()]
    shape = {part: said.value for part, said in read_shape(argv, environ).items()}
    content = [[*argv], str(folder), shape, [hashlib.sha256(path.read_bytes()).hexdigest() for path in scripts]]
    mark = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    stem = scripts[0].stem if scripts else PurePath(argv[0]).name
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem).strip('-.') or 'job'}-{mark}"


def target_of_job(
    target: Target,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    gpus_visible: Callable[[], bool] = gpus_visible,
) -> Target:
    """Return where trials for a job run: as asked, else on the nodes at hand, in the shape of the job.

    Args:
        target: as the user gave it.
        argv: the job's command; empty = there is none.
        environ: of this process.
        gpus_visible: asked only when needed.

    Raises:
        UsageError: nothing can be measured here, or the options contradict each other.
    """
    found = target.resolved(environ, gpus_visible=gpus_visible)
    if not found.is_launched:
        return found
    if found.lacks_allocation(environ):
        raise UsageError(
            "the job and the trials need nodes, and this is not in a Slurm allocation",
            hint="put the same command into a batch script, or after salloc",
        )
    if is_node_launcher(argv) and (total := most_nodes(argv, environ, target.nodes)) > 1:
        raise UsageError(
            f"the command starts the processes of this node only, and the job has {total}",
            hint="begin it with what starts all nodes: srun torchrun ..., or mpirun ... python train.py",
        )
    shape = read_shape(argv, environ, nodes=target.nodes, gpus_per_node=target.gpus_per_node) if argv else {}
    nodes, gpus = (int(shape[part].value) if part in shape else None for part in ("nodes", "gpus_per_node"))
    found = replace(found, nodes=found.nodes or nodes, gpus_per_node=found.gpus_per_node or gpus)
    if not found.launcher_class.starts_ranks and not (target.launcher or target.benchmark or target.nccl_tests):
        # The job has brought PyTorch, nccl-tests may not be here, and only PyTorch's ranks take a table.
        found = replace(found, launcher="torchrun", reason=f"{found.reason}, and the job is one of PyTorch")
    return found


def record_job(
    argv: Sequence[str],
    *,
    name: str,
    steps: int | None,
    how: Comparison,
    launcher: Launcher,
    environ: Mapping[str, str],
) -> Recording:
    """Launch a job for its first steps, without the NCCL variables of this shell, and read what it sent.

    Args:
        argv: its command.
        name: of the workload.
        steps: recorded ones; None = the recorder's default.
        how: warm-up, limit and folder, as for the launches of the comparison.
        launcher: of the comparison.
        environ: of this process.

    Raises:
        StudyStoppedError: the job fails, or nothing can be read.
        NodesLostError: the allocation is lost.
        UsageError: the folder cannot be used.
    """
    removed = launcher.plan(argv, variables={}, timeout_s=how.timeout_s).unset_env
    inherited = {name: value for name, value in environ.items() if name not in removed}

    def start(plan: RecordPlan) -> int:
        result = launcher.run(launcher.plan(plan.argv, variables=dict(plan.set_env), timeout_s=how.timeout_s))
        result.require_nodes()
        if failure := failure_of(result, timeout_s=how.timeout_s):
            raise StudyStoppedError(
                f"the job fails while it is recorded: {failure}", hint="does the command run by itself?"
            )
        return 0

    folder = make_folder(how.directory, keep=None)
    try:
        plan = plan_recording(
            argv,
            folder=folder,
            environ=inherited,
            method=Method.AUTO,
            steps=steps,
            warmup=how.warmup,
            stop_after=True,
            open_mpi=is_open_mpi(argv[0], environ=environ),
        )
        recording = run_recording(plan, folder, name=name, start=start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if recording.workload is None:
        raise StudyStoppedError(f"nothing was recorded: {recording.reason}", hint=recording.hint)
    return recording


def ceiling_words(workload: Workload) -> str:
    """Return as a sentence what tuning can save at most."""
    bound = gain_bound(workload)
    if bound is None or not workload.step_time_us:
        return "ceiling: not known, for nothing recorded how much of the communication is exposed"
    return (
        f"ceiling: {bound.share * 100:.1f} % of a step is exposed communication, so tuning can save at most "
        f"{bound.share * workload.step_time_us / 1e3:.2f} of {workload.step_time_us / 1e3:.2f} ms"
    )


def hopeless(workload: Workload, *, min_effect: float) -> str:
    """Return why no tuning can be worth a change; empty where it can, or where that is not known."""
    bound = gain_bound(workload)
    if bound is None or bound.speedup - 1 >= min_effect:
        return ""
    return (
        f"without any exposed communication steps would be {(bound.speedup - 1) * 100:.1f} % faster, less than the "
        f"minimum of {min_effect * 100:g} %"
    )


def why_not_compared(recommendation: Recommendation, argv: Sequence[str]) -> str:
    """Return why the step times of a job need no comparison or cannot have one; empty where they are compared."""
    if not has_gain(recommendation):
        return "step times are not compared: the job would run with the NCCL default on both sides"
    valid = recommendation.fingerprint
    if is_unmeasured(recommendation):
        return (
            "step times cannot be compared: no job runs on a recording or a model; on "
            f"{valid.nodes} x {valid.gpus_per_node} real GPUs `ncclt autotune -- COMMAND` compares them"
        )
    return "" if argv else "step times are not compared: that needs the job's command, after --"


def last_comparison(
    store: Store, recommendation: Recommendation, argv: Sequence[str], how: Comparison
) -> Verification | None:
    """Return the newest stored comparison of a job with this recommendation, made in the same way; None = none."""
    for found in store.records.verifications(recommendation=recommendation.id):
        made = (found.argv, found.base_argv, found.warmup, found.steps, found.verdict.min_effect)
        if made == (words_without_secrets(argv), (), how.warmup, how.steps, how.min_effect):
            return found
    return None
