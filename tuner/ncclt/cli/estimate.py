"""`ncclt estimate`: predict whether a training step will wait for the network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import cluster_names
from ncclt.cli.options import AsJson, Model, OldModel, Storage, workload_name
from ncclt.cli.output import print_json, print_table
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.cli.estimate_curves import MeasuredCurves
    from ncclt.core.cluster import Cluster
    from ncclt.core.workload import Workload
    from ncclt.profile.views.estimate import Estimate, MessageTime

app = typer.Typer(add_completion=False)

_ROWS = 12


@app.command()
def estimate(
    model: Model = None,
    profile: OldModel = None,
    *,
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="Name of the cluster, see `ncclt cluster list`.", autocompletion=cluster_names),
    ],
    nodes: Annotated[int | None, typer.Option(help="Nodes; default: those of the cluster.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node; default: all.")] = None,
    tflops: Annotated[
        float | None, typer.Option(help="What one GPU reaches in training, 1e12 operations/s, often 40 % of its peak.")
    ] = None,
    params: Annotated[float | None, typer.Option(help="Parameters; default: what the profile says.")] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="Of the whole job: sequence length x global batch.")
    ] = None,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="The backward pass recomputes activations (checkpointing): 8 operations per parameter and token "
            "instead of 6.",
        ),
    ] = False,
    compute_ms: Annotated[float | None, typer.Option(help="Computation of one step, if you know it, ms.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Estimate seconds of compute and of communication per step, and at which bandwidth the one outweighs the other."""
    from ncclt.cli.estimate_curves import measured_curves
    from ncclt.profile.views.estimate import estimate as estimated
    from ncclt.store import open_to_read

    name = workload_name(model, profile)
    with open_to_read(storage) as store:
        where = store.cluster(cluster).sized(nodes=nodes, gpus_per_node=gpus_per_node)
        recorded = store.workload(name)
        measured = measured_curves(store, where)
    workload = recorded.placed(nodes=where.nodes, gpus_per_node=where.gpus_per_node)
    if recorded.provenance.whole_file:
        if any(value is not None for value in (tflops, params, tokens_per_step, compute_ms)):
            raise UsageError(
                f"the computation of a step cannot be compared: how many steps {name} holds is not known",
                hint="import it again with `ncclt profile import --steps N`",
            )
        compute_s, source = None, "how many steps the profile holds is not known"
    else:
        compute_s, source = _compute(recorded, where, tflops, params, tokens_per_step, compute_ms, recompute)
    found = estimated(workload, where, compute_s=compute_s, measured=measured.curves)
    if as_json:
        print_json(_document(recorded, where, found, source, measured))
    else:
        _print(recorded, where, found, source, measured)


def _compute(
    workload: Workload,
    cluster: Cluster,
    tflops: float | None,
    params: float | None,
    tokens_per_step: float | None,
    compute_ms: float | None,
    recompute: bool,
) -> tuple[float | None, str]:
    """Return the compute time of one step, s, and where it comes from."""
    from ncclt.profile.views.estimate import OPERATIONS, compute_seconds

    flops_given = [v for v in (tflops, params, tokens_per_step) if v is not None]
    if compute_ms is not None:
        if flops_given or recompute:
            raise UsageError("--compute-ms is the result of --tflops, --params and --tokens-per-step", hint="give one")
        if not (compute_ms > 0 and math.isfinite(compute_ms)):
            raise UsageError(f"--compute-ms must be above 0, not {compute_ms:g}")
        return compute_ms / 1e3, "as given"
    if flops_given:
        known = workload.provenance.detail.get("parameters", "")
        parameters = params if params is not None else float(known) if known.isdecimal() else None
        options = {"--tflops": tflops, "--params": parameters, "--tokens-per-step": tokens_per_step}
        lacking = [option for option, value in options.items() if value is None]
        if tflops is None or parameters is None or tokens_per_step is None:
            raise UsageError(f"{' and '.join(lacking)} missing", hint=f"{', '.join(options)} belong together")
        seconds = compute_seconds(
            parameters=parameters,
            tokens_per_step=tokens_per_step,
            gpus=cluster.world_size,
            tflops=tflops,
            recompute=recompute,
        )
        work = OPERATIONS[recompute] * parameters * tokens_per_step / cluster.world_size / 1e12
        again = ", activations recomputed" if recompute else ""
        return seconds, (
            f"{OPERATIONS[recompute]} operations per parameter and token{again}: {parameters:,.0f} parameters x "
            f"{tokens_per_step:,.0f} tokens / {cluster.world_size} GPUs = {work:,.0f} TFLOP, at {tflops:g} TFLOP/s"
        )
    if recompute:
        raise UsageError("--recompute needs --tflops, --params and --tokens-per-step", hint="leave it out")
    if workload.step_time_us and workload.exposed_us is not None and workload.exposed_us < workload.step_time_us:
        seconds = (workload.step_time_us - workload.exposed_us) / 1e6
        return seconds, "recorded: step time without exposed communication, on the GPUs of the recording"
    return None, "not known"


def _document(
    profile: Workload, cluster: Cluster, found: Estimate, source: str, measured: MeasuredCurves
) -> dict[str, Any]:
    bound = found.is_network_bound
    return {
        "schema": 1,
        "profile": profile.name,
        "whole_file": profile.provenance.whole_file,
        "cluster": cluster.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "compute_s": found.compute_s,
        "compute_source": source,
        "communication_s": found.communication_s,
        "links_s": found.links_s,
        "bound": None if bound is None else "network" if bound else "compute",
        "busbw_gbps": found.bus_gbps,
        "turning_busbw_gbps": found.turning_gbps,
        "studies": list(measured.studies),
        "simulated": measured.simulated,
        "recorded": measured.recorded,
        "messages": [
            {
                **row.message.to_document(),
                "calls_per_step": row.calls_per_step,
                "time_us": row.time_us,
                "source": _source(row, measured),
                "link_gbps": row.link_gbps,
            }
            for row in found.messages
        ],
    }


def _print(profile: Workload, cluster: Cluster, found: Estimate, source: str, measured: MeasuredCurves) -> None:
    from ncclt.core.message import format_bytes

    print(f"{profile.name} on {cluster.name}, {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}")
    calls, time = f"calls per {profile.unit}", f"ms per {profile.unit}"
    header = ("collective", "size", "group", calls, "µs per call", time, "ring limit, GB/s", "from")
    rows = [
        (
            row.message.collective.value,
            format_bytes(row.message.size_bytes),
            str(row.message.group_size),
            f"{row.calls_per_step:g}",
            f"{row.time_us:,.1f}",
            f"{row.time_us * row.calls_per_step / 1e3:,.2f}",
            f"{row.link_gbps:.1f}",
            _source(row, measured),
        )
        for row in found.messages[:_ROWS]
    ]
    print_table(header, rows, numbers=header[1:-1])
    if len(found.messages) > _ROWS:
        print(f"... and {len(found.messages) - _ROWS} more messages")
    print(measured.sentence)
    average = f"bus bandwidth {found.bus_gbps:.3g} GB/s on average"
    print(f"communication: {_seconds(found.communication_s)} {profile.per}, {average}")
    if found.communication_s != found.links_s:
        print(f"  rings at the nominal bandwidth of the links, with latency, would take {_seconds(found.links_s)}")
    if found.compute_s is None:
        ask = "give --compute-ms, or --tflops, --params and --tokens-per-step"
        print(f"compute: {f'not known; {ask}' if not profile.provenance.whole_file else f'not comparable: {source}'}")
        return
    print(f"compute: {_seconds(found.compute_s)} per step ({source})")
    longest, both = max(found.compute_s, found.communication_s), found.compute_s + found.communication_s
    verdict = "network-bound" if found.is_network_bound else "compute-bound"
    print(f"{verdict}: a step takes {_seconds(longest)} if all that can overlap does, {_seconds(both)} if nothing does")
    print(f"break-even at {found.turning_gbps:.1f} GB/s of bus bandwidth: below network-bound, above compute-bound")


def _source(row: MessageTime, measured: MeasuredCurves) -> str:
    from ncclt.profile.views.estimate import Source

    if row.source is not Source.MEASURED:
        return row.source.value
    return "simulated" if measured.simulated else "recorded" if measured.recorded else row.source.value


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.2f} ms"
