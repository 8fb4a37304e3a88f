"""Tuning inside a running job (`ncclt autotune --live`): what its ranks are started with, and the verdict afterwards.

The ranks switch between arms by themselves (`deliver.agree`), directed by rank 0 (`prove.live_director`). This side
writes the arms into a folder that all nodes read, starts the job, and reads the blocks when it has ended, however it
ended. Experimental: not yet seen on several GPUs.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, Recommendation, Verdict
from ncclt.core.trial import LIVE
from ncclt.core.verification import Side, StepLaunch, Verification, sorted_variables
from ncclt.core.workload import Workload
from ncclt.deliver.agree import agreement_environment, hook_path, write_hook
from ncclt.deliver.agree.injected.live import FOLDER_VARIABLE, STEPS_VARIABLE, VARIABLE
from ncclt.deliver.answer import answer_from_recommendation
from ncclt.deliver.node_files import place_plugin
from ncclt.launch.mpi import forward_variables
from ncclt.measure.redact import words_without_secrets
from ncclt.nccl.tuner_plugin.compact_table import MOST_BYTES, POLICY_VARIABLE, TABLE_VARIABLE, encode_table
from ncclt.nccl.tuner_table import PluginRow, table_text
from ncclt.nccl.variables import split_variables
from ncclt.pipeline.candidates import build_study, explain_other_backend, publish_winner
from ncclt.profile.record.ranks import is_other_backend
from ncclt.prove.experiment import CONTROL, ArmResult, Draw, Experiment, StepBlock
from ncclt.prove.live_director import ARMS_FILE, MIN_BLOCK_S, MIN_COUNTED, SWITCH_STEPS, resume_experiment
from ncclt.prove.verdict import describe_gain, state_step_gain
from ncclt.store.store import Store

FIRST_VERSION = NcclVersion(2, 28, 3)
"""First NCCL whose tuners can name their communicator (tuner API v5)."""

EXPERIMENTAL = "experimental, not yet seen on several GPUs"

_NEEDS = "--live needs a PyTorch training that uses NCCL"
_NO_COMMUNICATOR = f"no NCCL communicator was seen; {_NEEDS}, and a folder of --dir that its rank 0 sees"
_NO_STEPS = f"fewer than {SWITCH_STEPS + MIN_COUNTED} optimizer steps were seen; {_NEEDS} and a torch optimizer"

_GROUPED = ("allreduce", "allgather", "reducescatter")
"""Collectives of data-parallel trainings, sharded or not."""

_UNIFORM = (("ring", "ll128", _GROUPED), ("ring", "simple", _GROUPED), ("tree", "ll128", ("allreduce",)))
"""Arms where no study has been made: algorithm, protocol and collectives. NCCL's default differs from each of them for
some sizes; a choice that NCCL does not offer for a call is passed over by the plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArm:
    """Policy for blocks of steps.

    Attributes:
        name: as it is shown.
        table: compact.
        candidate: published or proposed; None = the policy belongs to no stored workload.
    """

    name: str
    table: str
    candidate: Recommendation | None = None

    @property
    def recommendation(self) -> str:
        """Return the id of the published revision; empty = not published."""
        return self.candidate.id if self.candidate and not self.candidate.is_untried else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedJob:
    """Workload and cluster of a job that is tuned live.

    Attributes:
        workload: as it is stored.
        cluster: sized to the job, with its NCCL version.
        candidates: published or proposed for both.
    """

    workload: Workload
    cluster: Cluster
    candidates: tuple[Recommendation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """Live tuning request.

    Attributes:
        argv: command of the job.
        arms: arms besides the NCCL default.
        plugin: path to the compiled tuner plugin.
        folder: folder that all nodes share, for this job alone.
        min_effect: smallest gain that justifies a change, as a share.
        max_cost: max cost of the arms, as a share of the job's time (`Experiment`).
        open_mpi: the command is Open MPI's launcher.
        min_block_s: min time of a block, s.
    """

    argv: tuple[str, ...]
    arms: tuple[LiveArm, ...]
    plugin: Path
    folder: Path
    min_effect: float
    max_cost: float
    open_mpi: bool = False
    min_block_s: float = MIN_BLOCK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """Outcome of live tuning.

    Attributes:
        verdict: on the winner, or else on the arm that looked best.
        arm: its name; empty = no arm was compared.
        results: by arm, in order.
        launches: blocks of default and arm.
        steps: until the last block.
        cost: of all arms, as a share of the job's time until then.
        ended: reason of its end inside the job; empty = the job ended before.
        other_backend: backend of the job, where it is not NCCL; empty = NCCL.
        ranks: of the job; 0 = not known.
        is_training: rank 0 saw optimizer steps and no other backend than NCCL.
    """

    verdict: Verdict
    arm: str
    results: tuple[tuple[str, ArmResult], ...]
    launches: tuple[StepLaunch, ...]
    steps: int
    cost: float
    ended: str
    other_backend: str = ""
    ranks: int = 0
    is_training: bool = False

    def find_arm(self, request: LiveRequest) -> LiveArm | None:
        """Return the arm of the verdict."""
        return next((arm for arm in request.arms if arm.name == self.arm), None)


def explain_obstacle(environ: Mapping[str, str], *, plugin: Path | None, version: NcclVersion | None) -> str:
    """Return the obstacle to live tuning that is visible before the job starts; empty = none."""
    if plugin is None:
        return "the tuner plugin is missing (`ncclt admin plugin build` makes it)"
    if tuner := environ.get("NCCL_TUNER_PLUGIN"):
        return f"the job sets another tuner plugin (NCCL_TUNER_PLUGIN={tuner})"
    if table := next((name for name in (TABLE_VARIABLE, POLICY_VARIABLE) if environ.get(name)), ""):
        return f"the job has a tuner table already ({table})"
    if version is None:
        return "the NCCL version of the job is unknown (if it uses NCCL, name the version with NCCL_VERSION)"
    if version < FIRST_VERSION:
        return f"it needs NCCL {FIRST_VERSION} or later, the job has {version}"
    return ""


def build_arms(
    version: NcclVersion, *, nodes: int, ranks: int, candidates: Sequence[Recommendation] = ()
) -> tuple[LiveArm, ...]:
    """Return the arms of a job: the tables of candidates, or without any the uniform ones.

    Args:
        version: NCCL of the job.
        nodes, ranks: of the job; 0 = unknown.
        candidates: published or proposed; those without a table, or with one above `MOST_BYTES`, are left out.
    """
    arms = []
    for candidate in candidates:
        text = answer_from_recommendation(candidate).table
        table = encode_table(text) if text else ""
        if 0 < len(table) <= MOST_BYTES:
            arms.append(LiveArm(name=candidate.id, table=table, candidate=candidate))
    if arms:
        return tuple(arms)
    for algorithm, protocol, collectives in _UNIFORM:
        rows = [PluginRow(collective=name, algorithm=algorithm, protocol=protocol).text() for name in collectives]
        id = f"live-{algorithm}-{protocol}"
        table = encode_table(table_text(rows, table_id=id, version=version, nodes=nodes, ranks=ranks))
        arms.append(LiveArm(name=f"{algorithm}/{protocol}", table=table))
    return tuple(arms)


def write_live(request: LiveRequest) -> None:
    """Write hook and arms into the folder.

    Raises:
        OSError: they cannot be written there.
    """
    write_hook(hook_path(request.folder))
    document = {
        "arms": [{"name": arm.name, "table": arm.table} for arm in request.arms],
        "min_effect": request.min_effect,
        "max_cost": request.max_cost,
        "min_block_s": request.min_block_s,
    }
    (request.folder / ARMS_FILE).write_text(json.dumps(document), encoding="utf-8")


def plan_live(request: LiveRequest, environ: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return command line and variables of the job.

    Args:
        request: whose folder `write_live` has filled.
        environ: the environment that the job inherits.

    Raises:
        OSError: the plugin cannot be copied into the folder.
        UsageError: the folder's name cannot be used.
    """
    variables = {
        **agreement_environment(hook_path(request.folder), environ),
        "NCCL_TUNER_PLUGIN": str(place_plugin(request.folder, request.plugin)),
        VARIABLE: "1",
        STEPS_VARIABLE: str(SWITCH_STEPS + MIN_COUNTED),
        FOLDER_VARIABLE: str(request.folder),
    }
    argv, forwarded = forward_variables(
        request.argv, tuple(sorted(variables)), environ={**environ, **variables}, open_mpi=request.open_mpi
    )
    return argv, variables | forwarded


def read_live(request: LiveRequest) -> LiveResult:
    """Read the blocks of a job and judge them again, as rank 0 did."""
    names = [arm.name for arm in request.arms]
    experiment, blocks, state = resume_experiment(
        request.folder, names, min_effect=request.min_effect, max_cost=request.max_cost
    )
    results = tuple((arm.name, experiment.result(number)) for number, arm in enumerate(request.arms, start=1))
    best = experiment.leading or max(
        (arm for arm in range(1, experiment.arms + 1) if math.isfinite(experiment.estimate(arm))),
        key=experiment.estimate,
        default=CONTROL,
    )
    ended = str(state.get("finished", ""))
    backend = str(state.get("backend", ""))
    other_backend = backend if is_other_backend(backend) else ""
    has_steps = bool(blocks or ended or state.get("step"))
    missing = "" if has_steps else _NO_STEPS if state else _NO_COMMUNICATOR
    return LiveResult(
        verdict=_judge(experiment, blocks, best, results[best - 1][1] if best else None, ended=ended or missing),
        arm=request.arms[best - 1].name if best else "",
        results=results,
        launches=tuple(_build_launches(blocks, best, request)),
        steps=blocks[-1].step if blocks else 0,
        cost=experiment.cost_us() / experiment.elapsed_us if experiment.elapsed_us else 0.0,
        ended=ended,
        other_backend=other_backend,
        ranks=int(state.get("ranks", 0)),
        is_training=has_steps and not other_backend,
    )


def _judge(
    experiment: Experiment, blocks: Sequence[StepBlock], best: int, result: ArmResult | None, *, ended: str
) -> Verdict:
    decision = Decision.UNDECIDED
    if experiment.tuned is not None:
        decision = Decision.TUNED
    elif blocks and not experiment.left:
        decision = Decision.KEEP_DEFAULT
    if result is None:
        reason = ended or "the job ended before any arm was compared"
        result = ArmResult(1.0, 0.0, math.inf, 0, "")
    else:
        gain = describe_gain(result.speedup, (result.low, result.high), count_noun(result.blocks, "block"))
        if decision is Decision.KEEP_DEFAULT:
            reason = f"no arm is faster; the best one: {gain}"
        elif experiment.leading is not None:
            reason = f"leading: {gain}; too few steps to rule out stalls that would cancel it"
        else:
            reason = f"inconclusive: {gain}; {ended or 'the job ended before a decision'}"
    default_us = _mean_us(blocks, CONTROL)
    verdict = Verdict(
        decision=decision,
        reason=reason,
        speedup=result.speedup,
        interval=(result.low, result.high),
        blocks=result.blocks,
        default_us=default_us,
        policy_us=_mean_us(blocks, best) or default_us,
        min_effect=experiment.min_effect,
    )
    return state_step_gain(verdict, f"{count_noun(result.blocks, 'block')} inside one job; live: {EXPERIMENTAL}")


def _mean_us(blocks: Sequence[StepBlock], arm: int) -> float:
    times_us = [time_us for block in blocks if block.arm == arm for time_us in block.step_us]
    return statistics.fmean(times_us) if times_us else 0.0


def _build_launches(blocks: Sequence[StepBlock], best: int, request: LiveRequest) -> list[StepLaunch]:
    """Return the blocks of default and arm; those that tell something have the estimate that they led to."""
    experiment, launches = Experiment(arms=len(request.arms), min_effect=request.min_effect), list[StepLaunch]()
    for block in blocks:
        experiment.observe(block)
        if block.arm not in (CONTROL, best):
            continue
        tells = (block.draw != Draw(CONTROL) and not block.draw.guards) or block is blocks[-1]
        result = experiment.result(best) if tells and math.isfinite(experiment.estimate(best)) else None
        launches.append(
            StepLaunch(
                side=Side.BASE if block.arm == CONTROL else Side.TUNED,
                order=len(launches),
                step_us=block.step_us,
                estimate=result and (result.speedup, result.low, result.high),
            )
        )
    return launches


def publish_result(
    request: LiveRequest,
    result: LiveResult,
    job: TunedJob | None,
    store: Store,
    *,
    missing: str,
    environ: Mapping[str, str],
) -> tuple[str, str]:
    """Publish a winner for the workload and cluster of its job.

    Args:
        request, result: of the job.
        job: None = workload or cluster are not known.
        store: of revisions.
        missing: reason why there is no job, with the next command.
        environ: that the job inherited.

    Returns:
        Id of the compared revision, and for a winner the next step in one line; the id is empty if the arm is not
        published, or the job did not train over NCCL.
    """
    arm = result.find_arm(request)
    if arm is None or result.verdict.decision is not Decision.TUNED:
        return arm.recommendation if arm and not result.other_backend else "", ""
    if job is None or arm.candidate is None:
        return "", f"Not published: {missing or f'no candidate for {job and job.workload.name} is a tuner table'}"
    return publish_winner(
        replace(arm.candidate, variables=None),  # the ranks switched tables
        result.verdict,
        build_study(job.workload, job.cluster, evidence=LIVE, reason=result.verdict.reason),
        store,
        baseline=split_variables(environ).tuning.keys() - {"NCCL_RUNTIME_CONNECT"},
        backend=result.other_backend,
        ranks=result.ranks,
    )


def build_verification(
    request: LiveRequest,
    result: LiveResult,
    *,
    model: str,
    cluster: str,
    revision: str,
    environ: Mapping[str, str],
    ranks: int,
    created: str,
) -> Verification:
    """Return the record of live tuning that the store keeps: its launches are blocks of steps of one job.

    Args:
        request, result: of the job.
        model, cluster: names of workload and cluster; empty = not known.
        revision: id of the published winner; empty = it is not published.
        environ: that the job inherited.
        ranks: of the job; 0 = unknown.
        created: ISO time.
    """
    arm = result.find_arm(request)
    content = json.dumps([request.argv, [launch.step_us for launch in result.launches], created])
    dropped = [f"dropped {name}: {arm_result.dropped}" for name, arm_result in result.results if arm_result.dropped]
    return Verification(
        id=hashlib.sha256(content.encode()).hexdigest()[:12],
        cluster=cluster,
        model=model,
        recommendation=revision,
        argv=words_without_secrets(request.argv),
        base_env=sorted_variables(split_variables(environ).tuning),
        tuned_env=sorted_variables({TABLE_VARIABLE: arm.table} if arm else {}),
        removed_env=(),
        warmup=SWITCH_STEPS,
        steps=MIN_COUNTED,
        ranks=ranks,
        hosts=0,
        launches=result.launches,
        verdict=result.verdict,
        notes=(
            f"live: launches are blocks of steps inside one job ({EXPERIMENTAL})",
            f"arm: {result.arm}",
            f"arms cost {result.cost * 100:.2g} % of the job's time up to step {result.steps}",
            *dropped,
            *([explain_other_backend(result.other_backend)] if result.other_backend else []),
        ),
        created=created,
    )
