"""`ncclt profile model MODEL`: predict what a model sends, from its name alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.options import AsJson, ReplaceWorkload, storage_url
from ncclt.cli.output import print_json, say
from ncclt.errors import UsageError


def model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model of torchvision, timm or transformers (bert), or LIBRARY:NAME.",
        ),
    ],
    dtype: Annotated[str, typer.Option(help="Type of parameters and gradients, such as bf16.")] = "float32",
    reduce_dtype: Annotated[
        str, typer.Option(help="Type of reduced gradients under fsdp and zero3; default: --dtype.", show_default=False)
    ] = "",
    bucket_cap_mb: Annotated[float, typer.Option(help="Size of DDP's buckets, MiB.")] = 25,
    sharding: Annotated[str, typer.Option(help="ddp, fsdp (one unit per block) or zero3.")] = "ddp",
    group_size: Annotated[int, typer.Option(help="Ranks per group; 0 = all ranks of the job.")] = 0,
    config: Annotated[Path | None, typer.Option(help="Path to config.json of a transformers model.")] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="NAME", help="Store the workload as NAME.")] = None,
    replace: ReplaceWorkload = False,
    limit: Annotated[int, typer.Option(help="Max rows; 0 = all.")] = 40,
    as_json: AsJson = False,
) -> None:
    """Compute the messages of a training step from a model's code.

    Needs no weights, GPU or network; buckets are PyTorch's own.
    """
    from ncclt.core.name import check_name
    from ncclt.profile.model.named import ModelRequest, Sharding, build_model_workload

    choices = [kind.value for kind in Sharding]
    if sharding not in choices:
        raise UsageError(f"unknown sharding {sharding!r}", hint=f"one of {', '.join(choices)}")
    if store is not None:
        check_name(store, "--store")
    if limit < 0:
        raise UsageError(f"--limit must be 0 or more, not {limit}")
    request = ModelRequest(
        model=name,
        config=config,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
        bucket_cap_mb=bucket_cap_mb,
        sharding=Sharding(sharding),
        group_size=group_size,
    )
    workload = build_model_workload(request, name=store or name, created=datetime.now(UTC).date().isoformat())
    where = ""
    if store is not None:
        from ncclt.store import open_store

        with open_store(storage_url()) as opened:
            opened.workloads.add(workload, replace=replace)
            where = opened.shown
    from ncclt.cli.profile_view import print_profile, profile_document

    if as_json:
        print_json(profile_document(workload))
    else:
        print_profile(workload, limit=limit)
    if store is not None:
        say(f"ncclt: stored {store} in {where}; tune it with: ncclt tune --model {store}")
