"""`ncclt advise`: predict what would help a job more than NCCL settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import cluster_names
from ncclt.cli.options import AsJson, Model, OldModel, Storage, workload_name
from ncclt.cli.output import note, print_json, print_table
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.workload import Workload
    from ncclt.profile.advice.advice import Advice
    from ncclt.profile.advice.job import Prediction

app = typer.Typer(add_completion=False)

_TEST = "ncclt verify --against 'torchrun ... train.py' -- torchrun ... changed.py"


@app.command()
def advise(
    model: Model = None,
    profile: OldModel = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Name of the cluster on which it was recorded. Default: only what the recording itself holds.",
            autocompletion=cluster_names,
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes; default: those of the recording, else the cluster's.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node; default: as with --nodes.")] = None,
    step_ms: Annotated[float | None, typer.Option(help="Time of one step, ms; default: recorded.")] = None,
    compute_ms: Annotated[
        float | None,
        typer.Option(help="The step without exposed communication, as on one GPU, ms; default: recorded."),
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Predict what other buckets, compression, accumulation, sharding and numbers of nodes would do to a step.

    From the recorded backward pass and from times of calls that are recorded, measured or modelled.
    """
    from ncclt.cli.estimate_curves import measured_curves
    from ncclt.profile.advice.advice import GivenTimes
    from ncclt.profile.advice.advice import advise as advised
    from ncclt.store import open_to_read

    name = workload_name(model, profile)
    with open_to_read(storage) as store:
        workload = store.workload(name)
        if cluster is None:
            where = _recorded(workload, nodes, gpus_per_node)
        else:
            where = _where(workload, store.cluster(cluster), nodes, gpus_per_node)
        others = _others(where) if cluster else ()
        found = [measured_curves(store, one) for one in (where, *others)] if cluster else []
    given = GivenTimes(
        step_us=None if step_ms is None else step_ms * 1e3, compute_us=None if compute_ms is None else compute_ms * 1e3
    )
    curves = {key: curve for one in found for key, curve in one.curves.items()}
    simulated = any(one.simulated for one in found)
    recorded = tuple(dict.fromkeys(one.recorded for one in found if one.recorded))
    advice = advised(workload, where, given=given, measured=curves, others=others)
    if cluster is None:
        said = "times of calls are those of the recording; --cluster NAME predicts other numbers of nodes too"
        advice = replace(advice, notes=(*advice.notes, said))
    if as_json:
        print_json(_document(advice, simulated, recorded))
    else:
        _print(advice, simulated, recorded)


def _recorded(workload: Workload, nodes: int | None, gpus_per_node: int | None) -> Cluster:
    """Return the stand-in for an unnamed cluster."""
    from ncclt.profile.advice.call_times import recorded_cluster

    if nodes is not None or gpus_per_node is not None:
        raise UsageError("--nodes and --gpus-per-node need --cluster", hint="`ncclt cluster list` shows the names")
    return recorded_cluster(workload)


def _where(workload: Workload, cluster: Cluster, nodes: int | None, gpus_per_node: int | None) -> Cluster:
    """Return the part of the cluster on which the job was recorded, or is to run."""
    recorded = workload.provenance.world_size
    if recorded and nodes is None and gpus_per_node is None:
        gpus_per_node = min(recorded, cluster.gpus_per_node)
        nodes = -(-recorded // gpus_per_node)
    where = cluster.sized(nodes=nodes, gpus_per_node=gpus_per_node)
    if recorded and where.world_size != recorded:
        raise UsageError(
            f"{workload.name} was recorded on {recorded} GPUs, and {where.nodes} x {where.gpus_per_node} are "
            f"{where.world_size}",
            hint="give --nodes and --gpus-per-node of the recording; the table predicts other numbers of nodes",
        )
    return where


def _others(where: Cluster) -> tuple[Cluster, ...]:
    """Return half as many and twice as many nodes, where the cluster can have them."""
    fewer = (where.sized(nodes=where.nodes // 2),) if where.nodes > 1 else ()
    try:
        return (*fewer, where.sized(nodes=where.nodes * 2))
    except UsageError:  # it describes no network
        return fewer


def _document(advice: Advice, simulated: bool, recorded: tuple[str, ...]) -> dict[str, Any]:
    job = advice.job
    return {
        "schema": 1,
        "predicted": True,
        "simulated": simulated,
        "recorded": list(recorded),
        "profile": job.workload.name,
        "cluster": job.cluster.name,
        "nodes": job.cluster.nodes,
        "gpus_per_node": job.cluster.gpus_per_node,
        "sharding": advice.sharding,
        "step": {"recorded": job.step_us is not None, **_times(advice.as_is)},
        "model_step_ms": advice.model_us / 1e3,
        "compute_ms": job.compute_us / 1e3,
        "exposed_ms": advice.exposed_us / 1e3,
        "changes": [
            {
                "change": row.change.name,
                "code": row.change.code,
                "lossy": row.change.lossy,
                "note": row.change.why if row.prediction else "",
                "not_predicted": "" if row.prediction else row.change.why,
                **(_times(row.prediction) if row.prediction else {"step_ms": None, "low_ms": None, "high_ms": None}),
                "speedup": advice.as_is.step_us / row.prediction.step_us if row.prediction else None,
            }
            for row in advice.rows
        ],
        "notes": list(advice.notes),
        "test_with": _TEST,
    }


def _times(prediction: Prediction) -> dict[str, float]:
    return {
        "step_ms": prediction.step_us / 1e3,
        "low_ms": prediction.low_us / 1e3,
        "high_ms": prediction.high_us / 1e3,
    }


def _print(advice: Advice, simulated: bool, recorded: tuple[str, ...]) -> None:
    from ncclt.profile.advice.call_times import RECORDING

    job, step_us = advice.job, advice.as_is.step_us
    cluster = job.cluster
    print(
        f"{job.workload.name} as recorded on {cluster.world_size} GPUs"
        if cluster.name == RECORDING
        else f"{job.workload.name} on {cluster.name}, {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}"
    )
    print(
        f"ceiling: {advice.exposed_us / 1e3:.2f} ms of a step of {step_us / 1e3:.2f} ms "
        f"({advice.exposed_us / step_us * 100:.1f} %) is exposed communication"
        f"{'' if job.step_us is not None else ', as predicted'}; no NCCL setting can gain more"
    )
    explained_us = max(0.0, advice.model_us - job.compute_us)
    if job.step_us is not None and explained_us < 0.8 * advice.exposed_us:
        print(f"  by its model {explained_us / 1e3:.2f} ms of it is waiting for gradients and slow ranks;")
        print("  the rest is in gaps of compute, where the CPU launches late: no row shortens those")
    rows = [(number, row.change, row.prediction) for number, row in enumerate(advice.rows, 1) if row.prediction]
    header = ("", "PREDICTED", "step", "range", "speed-up", "")
    print_table(
        header,
        [
            (
                str(number),
                change.name,
                f"{found.step_us / 1e3:.1f} ms",
                f"{found.low_us / 1e3:.1f} to {found.high_us / 1e3:.1f}",
                f"{step_us / found.step_us:.2f}x",
                "lossy" if change.lossy else "",
            )
            for number, change, found in rows
        ],
        numbers=("", "step", "range", "speed-up"),
    )
    if any(change.lossy for _, change, _ in rows):
        print("lossy: gradients are rounded; compare the loss before you keep it")
    print("to try:")
    for number, change, _ in rows:
        print(f"{number:3}  " + change.code.replace("; ", "\n     "))
        if change.why:
            print(f"       {change.why}")
    for change in (row.change for row in advice.rows if row.prediction is None):
        print(f"not predicted: {change.name}: {change.why}")
    for sentence in advice.notes:
        note(sentence)
    if simulated:
        note("measured times are those of SIMULATED studies")
    for label in recorded:
        note(f"measured times are {label}")
    print(f"a prediction proves nothing; test one on real steps with:\n  {_TEST}")
