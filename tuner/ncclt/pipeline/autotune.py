"""Stages of `ncclt autotune` that are no commands of their own: name and record a job, choose where trials run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from ncclt.core.cluster import Cluster
from ncclt.core.duration import format_duration
from ncclt.core.recommendation import Recommendation
from ncclt.core.verification import Verification, sorted_variables
from ncclt.core.workload import Workload
from ncclt.deliver.job_info import find_nccl_version, is_node_launcher, max_nodes, read_shape
from ncclt.errors import StudyStoppedError, UsageError
from ncclt.launch.launcher import Launcher
from ncclt.launch.mpi import is_open_mpi
from ncclt.measure.open_testbed import choose_cluster
from ncclt.measure.redact import variables_without_secrets, words_without_secrets
from ncclt.measure.target import Target, gpus_visible
from ncclt.nccl.variables import site_variables
from ncclt.profile.record.plan import Method, RecordOptions, RecordPlan, plan_recording
from ncclt.profile.record.session import Recording, make_folder, run_recording
from ncclt.profile.views.exposure import bound_gain
from ncclt.prove.comparison import Comparison
from ncclt.prove.step_times import describe_failure
from ncclt.prove.tuned_arm import has_gain, is_unmeasured
from ncclt.store.store import Store


def build_job_name(argv: Sequence[str], *, environ: Mapping[str, str], folder: Path) -> str:
    """Return the name under which a job's workload is kept: another job, another name.

    It depends on the command, the folder it runs in, the shape that its launcher gives it, and the content of the
    Python files that it names; what those import is not looked at.

    Args:
        argv: the job's command.
    """
    scripts = [path for path in (folder / word for word in argv if word.endswith(".py")) if path.is_file()]
    shape = {part: sourced.value for part, sourced in read_shape(argv, environ).items()}
    content = [[*argv], str(folder), shape, [hashlib.sha256(path.read_bytes()).hexdigest() for path in scripts]]
    mark = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    stem = scripts[0].stem if scripts else PurePath(argv[0]).name
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem).strip('-.') or 'job'}-{mark}"


def choose_target(
    target: Target,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    gpus_visible: Callable[[], bool] = gpus_visible,
) -> Target:
    """Choose where trials for a job run: as requested, else on the nodes at hand, in the shape of the job.

    Args:
        argv: the job's command; empty = there is none.
        gpus_visible: asked only when needed.

    Raises:
        UsageError: nothing can be measured here, or the options contradict each other.
    """
    chosen = target.resolved(environ, gpus_visible=gpus_visible)
    if not chosen.is_launched:
        return chosen
    if chosen.lacks_allocation(environ):
        raise UsageError(
            "the job and the trials need nodes, and this is not a Slurm allocation",
            hint="run the same command in a batch script or under salloc",
        )
    chosen = size_target(chosen, argv, environ=environ)
    if not chosen.launcher_class.starts_ranks and not (target.launcher or target.benchmark or target.nccl_tests):
        # The job has brought PyTorch, nccl-tests may not be here, and only PyTorch's ranks take a table.
        chosen = replace(chosen, launcher="torchrun", reason=f"{chosen.reason}, and the job uses PyTorch")
    return chosen


def size_target(target: Target, argv: Sequence[str], *, environ: Mapping[str, str]) -> Target:
    """Return a target in the shape of the job.

    Raises:
        UsageError: the command starts only a part of the job.
    """
    if is_node_launcher(argv) and (total := max_nodes(argv, environ, target.nodes)) > 1:
        raise UsageError(
            f"the command starts processes on this node only, and the job has {total} nodes",
            hint="start all nodes with it: srun torchrun ..., or mpirun ... python train.py",
        )
    shape = read_shape(argv, environ, nodes=target.nodes, gpus_per_node=target.gpus_per_node) if argv else {}
    nodes, gpus = (int(shape[part].value) if part in shape else None for part in ("nodes", "gpus_per_node"))
    return replace(target, nodes=target.nodes or nodes, gpus_per_node=target.gpus_per_node or gpus)


def choose_job_cluster(
    target: Target, argv: Sequence[str], find_cluster: Callable[[str], Cluster], *, environ: Mapping[str, str]
) -> Cluster:
    """Return the cluster of a job as it runs: in its shape, with the NCCL that it loads and the site's variables.

    Args:
        argv: the job's command.
        find_cluster: as for `choose_cluster`.

    Raises:
        UsageError: the command starts only a part of the job, or no cluster was named and the hardware is not known.
        NotFoundError: no cluster has that name.
    """
    loaded = find_nccl_version(argv, environ)
    version = target.nccl_version or (str(loaded.value) if loaded else None)
    cluster = choose_cluster(replace(size_target(target, argv, environ=environ), nccl_version=version), find_cluster)
    return replace(cluster, site_variables=site_variables(environ))


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
        steps: recorded ones; None = the recorder's default.
        how: warm-up, limit and folder, as for the launches of the comparison.

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
        if failure := describe_failure(result, timeout_s=how.timeout_s):
            raise StudyStoppedError(
                f"the job failed while recording: {failure}", hint="check that the command runs by itself"
            )
        return 0

    folder = make_folder(how.directory, keep=None)
    try:
        plan = plan_recording(
            argv,
            RecordOptions(method=Method.AUTO, steps=steps, warmup=how.warmup, stop_after=True),
            folder=folder,
            environ=inherited,
            open_mpi=is_open_mpi(argv[0], environ=environ),
        )
        recording = run_recording(plan, folder, name=name, start=start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if recording.workload is None:
        raise StudyStoppedError(f"nothing was recorded: {recording.reason}", hint=recording.hint)
    return recording


def describe_ceiling(workload: Workload) -> str:
    """Return the upper bound on step-time savings as a sentence."""
    bound = bound_gain(workload)
    if bound is None or not workload.step_time_us:
        return "Upper bound on savings: unknown, exposed communication was not recorded"
    return (
        f"Upper bound on savings: {format_duration(bound.share * workload.step_time_us)} of "
        f"{format_duration(workload.step_time_us)} per step ({bound.share * 100:.1f} % is exposed communication)"
    )


def explain_low_ceiling(workload: Workload, *, min_effect: float) -> str:
    """Return the reason why no tuning is worthwhile; empty where it may be."""
    bound = bound_gain(workload)
    if bound is None or bound.speedup - 1 >= min_effect:
        return ""
    return (
        f"without any exposed communication, steps would be {(bound.speedup - 1) * 100:.1f} % faster, less than the "
        f"{min_effect * 100:g} % threshold"
    )


def explain_no_comparison(recommendation: Recommendation, argv: Sequence[str]) -> str:
    """Return the reason why step times are not compared; empty where they are."""
    if not has_gain(recommendation):
        return "Step times not compared: both sides would run with the NCCL default"
    valid = recommendation.fingerprint
    if is_unmeasured(recommendation):
        return (
            "Step times not compared: --launcher replay and simulate cannot run a job; run "
            f"`ncclt autotune -- COMMAND` on {valid.nodes} x {valid.gpus_per_node} real GPUs"
        )
    return "" if argv else "Step times not compared: give the job's command after --"


def find_last_comparison(
    store: Store,
    recommendation: Recommendation,
    argv: Sequence[str],
    how: Comparison,
    *,
    base_env: Mapping[str, str],
    environ: Mapping[str, str],
) -> Verification | None:
    """Return the newest stored comparison of a job with this recommendation, made in the same way; None = none.

    Args:
        argv: the job's command.
        environ: of this process, with the variables of the site.
    """
    today, site = variables_without_secrets(sorted_variables(base_env)), site_variables(environ)
    wanted = (words_without_secrets(argv), (), today, site, how.warmup, how.steps, how.min_effect)
    for stored in store.records.verifications(recommendation=recommendation.id):
        sides = (stored.argv, stored.base_argv, stored.base_env, stored.site_variables)
        if (*sides, stored.warmup, stored.steps, stored.verdict.min_effect) == wanted:
            return stored
    return None
