"""Tuning inside a running job (`ncclt autotune --live`): what its ranks are started with, and the verdict afterwards.

The ranks switch between arms by themselves (`deliver.agree`), directed by rank 0 (`prove.live_director`). This side
writes the arms into a folder that all nodes read, starts the job, and reads the blocks when it has ended, however it
ended. Experimental: not yet seen on several GPUs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, Recommendation, Verdict
from ncclt.core.verification import Side, StepLaunch, Verification, sorted_variables
from ncclt.deliver.agree import agreement_environment, hook_path, write_hook
from ncclt.deliver.agree.injected.live import FOLDER_VARIABLE, STEPS_VARIABLE, VARIABLE
from ncclt.deliver.answer import answer_from_recommendation
from ncclt.deliver.node_files import place_plugin
from ncclt.launch.mpi import forward_variables
from ncclt.measure.redact import words_without_secrets
from ncclt.nccl.tuner_plugin.compact_table import MOST_BYTES, POLICY_VARIABLE, TABLE_VARIABLE, encode_table
from ncclt.nccl.tuner_table import PluginRow, table_text
from ncclt.prove.live_director import (
    ARMS_FILE,
    MIN_BLOCK_S,
    MIN_COUNTED,
    STATE_FILE,
    SWITCH_STEPS,
    read_blocks,
)
from ncclt.prove.live_proof import DEFAULT, ArmResult, LiveProof, StepBlock

FIRST_VERSION = NcclVersion(2, 28, 3)
"""First NCCL whose tuners can name their communicator (tuner API v5)."""

EXPERIMENTAL = "experimental, not yet seen on several GPUs"

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
        recommendation: id of a published one; empty = it is not published.
    """

    name: str
    table: str
    recommendation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """Live tuning request.

    Attributes:
        argv: the job's command.
        arms: beside the NCCL default.
        plugin: the compiled tuner plugin.
        folder: shared by all nodes; for this job alone.
        min_effect: smallest gain that justifies a change, as a share.
        max_cost: share of the job's time that arms may cost (`LiveProof`).
        open_mpi: the command is Open MPI's launcher.
        min_block_s: time of a block at least, s.
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
    """

    verdict: Verdict
    arm: str
    results: tuple[tuple[str, ArmResult], ...]
    launches: tuple[StepLaunch, ...]
    steps: int
    cost: float
    ended: str


def explain_obstacle(environ: Mapping[str, str], *, plugin: Path | None, version: NcclVersion | None) -> str:
    """Return the obstacle to live tuning that is visible before the job starts; empty = none."""
    if plugin is None:
        return "the tuner plugin is missing (`ncclt admin plugin build` makes it)"
    if tuner := environ.get("NCCL_TUNER_PLUGIN"):
        return f"the job sets another tuner plugin (NCCL_TUNER_PLUGIN={tuner})"
    if table := next((name for name in (TABLE_VARIABLE, POLICY_VARIABLE) if environ.get(name)), ""):
        return f"the job has a tuner table already ({table})"
    if version is None:
        return "the NCCL version of the job is unknown (name it with NCCL_VERSION)"
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
    texts = {one.id: answer_from_recommendation(one).table for one in candidates}
    compact = {name: encode_table(text) for name, text in texts.items() if text}
    published = {one.id for one in candidates if not one.is_untried}
    arms = tuple(
        LiveArm(name=name, table=table, recommendation=name if name in published else "")
        for name, table in compact.items()
        if len(table) <= MOST_BYTES
    )
    return arms or tuple(
        LiveArm(
            name=f"{algorithm}/{protocol}",
            table=encode_table(
                table_text(
                    [PluginRow(collective=one, algorithm=algorithm, protocol=protocol).text() for one in collectives],
                    table_id=f"live-{algorithm}-{protocol}",
                    version=version,
                    nodes=nodes,
                    ranks=ranks,
                )
            ),
        )
        for algorithm, protocol, collectives in _UNIFORM
    )


def write_live(request: LiveRequest) -> None:
    """Write hook and arms into the folder.

    Raises:
        OSError: they cannot be written there.
    """
    write_hook(hook_path(request.folder))
    told = {
        "arms": [{"name": arm.name, "table": arm.table} for arm in request.arms],
        "min_effect": request.min_effect,
        "max_cost": request.max_cost,
        "min_block_s": request.min_block_s,
    }
    (request.folder / ARMS_FILE).write_text(json.dumps(told), encoding="utf-8")


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
    argv, more = forward_variables(
        request.argv, tuple(sorted(variables)), environ={**environ, **variables}, open_mpi=request.open_mpi
    )
    return argv, variables | more


def read_live(request: LiveRequest) -> LiveResult:
    """Read the blocks of a job and judge them again, as rank 0 did."""
    proof = LiveProof(arms=len(request.arms), min_effect=request.min_effect, max_cost=request.max_cost)
    saved = read_blocks(request.folder)
    for one in saved:
        proof.add(one.block, elapsed_us=one.elapsed_us)
    results = tuple((arm.name, proof.result(number)) for number, arm in enumerate(request.arms, start=1))
    best = proof.winner or max(
        (arm for arm in range(1, proof.arms + 1) if math.isfinite(proof.estimate(arm))),
        key=proof.estimate,
        default=DEFAULT,
    )
    try:
        ended = str(json.loads((request.folder / STATE_FILE).read_text(encoding="utf-8"))["finished"])
    except (OSError, ValueError, KeyError):
        ended = ""
    return LiveResult(
        verdict=_judge(proof, best, results[best - 1][1] if best else None, ended=ended),
        arm=request.arms[best - 1].name if best else "",
        results=results,
        launches=tuple(_launches([one.block for one in saved], best)),
        steps=saved[-1].step if saved else 0,
        cost=proof.cost_us() / proof.elapsed_us if proof.elapsed_us else 0.0,
        ended=ended,
    )


def _judge(proof: LiveProof, best: int, found: ArmResult | None, *, ended: str) -> Verdict:
    decision = Decision.UNDECIDED
    if proof.winner is not None:
        decision = Decision.TUNED
    elif proof.blocks and not proof.left:
        decision = Decision.KEEP_DEFAULT
    if found is None:
        reason = ended or "the job ended before any arm was compared"
        found = ArmResult(1.0, 0.0, math.inf, 0, "", is_proven=False)
    else:
        low, high = ((end - 1) * 100 for end in (found.low, found.high))
        bounds = f"95 % CI {low:+.1f} % to {high:+.1f} %, " if found.low > 0 and math.isfinite(found.high) else ""
        gain = f"{(found.speedup - 1) * 100:+.1f} % ({bounds}{count_noun(found.blocks, 'block')})"
        reason = {
            Decision.TUNED: f"training steps are faster: {gain}",
            Decision.KEEP_DEFAULT: f"no arm is faster; the best one: {gain}",
            Decision.UNDECIDED: f"inconclusive: {gain}"
            + (f"; {ended}" if ended else "; the job ended before a decision"),
        }[decision]
    default_us = _median_us(proof.blocks, DEFAULT)
    return Verdict(
        decision=decision,
        reason=reason,
        speedup=found.speedup,
        interval=(found.low, found.high),
        blocks=found.blocks,
        default_us=default_us,
        policy_us=_median_us(proof.blocks, best) or default_us,
        min_effect=proof.min_effect,
    )


def _median_us(blocks: Sequence[StepBlock], arm: int) -> float:
    times_us = sorted(time_us for block in blocks if block.arm == arm for time_us in block.step_us)
    return times_us[len(times_us) // 2] if times_us else 0.0


def _launches(blocks: Sequence[StepBlock], best: int) -> list[StepLaunch]:
    return [
        StepLaunch(side=Side.BASE if block.arm == DEFAULT else Side.TUNED, order=order, step_us=block.step_us)
        for order, block in enumerate(blocks)
        if block.arm in (DEFAULT, best)
    ]


def build_verification(
    request: LiveRequest, result: LiveResult, *, model: str, cluster: str, ranks: int, created: str
) -> Verification:
    """Return the record of live tuning that the store keeps: its launches are blocks of steps of one job.

    Args:
        request, result: of the job.
        model, cluster: names of workload and cluster; empty = not given.
        ranks: of the job; 0 = unknown.
        created: ISO time.
    """
    arm = next((arm for arm in request.arms if arm.name == result.arm), None)
    content = json.dumps([request.argv, [launch.step_us for launch in result.launches], created])
    dropped = [f"dropped {name}: {found.dropped}" for name, found in result.results if found.dropped]
    return Verification(
        id=hashlib.sha256(content.encode()).hexdigest()[:12],
        cluster=cluster,
        model=model,
        recommendation=arm.recommendation if arm else "",
        argv=words_without_secrets(request.argv),
        base_env=(),
        tuned_env=sorted_variables({TABLE_VARIABLE: arm.table} if arm else {}),
        removed_env=(),
        warmup=SWITCH_STEPS,
        steps=MIN_COUNTED,
        ranks=ranks,
        hosts=0,
        launches=tuple(replace(launch, order=order) for order, launch in enumerate(result.launches)),
        verdict=result.verdict,
        notes=(
            f"live: launches are blocks of steps inside one job ({EXPERIMENTAL})",
            f"arm: {result.arm}",
            f"arms cost {result.cost * 100:.2g} % of the job's time up to step {result.steps}",
            *dropped,
        ),
        created=created,
    )
