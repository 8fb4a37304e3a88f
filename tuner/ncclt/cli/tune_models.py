"""`ncclt tune --models`: several workloads by the same launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.core.option import Group
from ncclt.errors import UsageError

if TYPE_CHECKING:
    from ncclt.measure.target import Target
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline.tune import TuneRequest
    from ncclt.store import Store

ALL = "all"

Models = Annotated[
    str | None,
    typer.Option(
        help="Several workloads instead of --model, comma-separated: each launch measures the messages of all, and "
        "each has its own policy and verdict. all = those that were tuned on this cluster before.",
        metavar="NAME,NAME",
        rich_help_panel=Group.WHAT,
    ),
]


def names_of(models: str, target: Target, store: Store) -> list[str]:
    """Return the names that --models gives.

    Raises:
        UsageError: there are none, or `all` needs a cluster, or nothing was tuned on it.
    """
    from ncclt.measure.open_testbed import chosen_cluster

    if models != ALL:
        named = [name.strip() for name in models.split(",") if name.strip()]
        if not named:
            raise UsageError("--models names no workload", hint="`ncclt profile list` lists all; give two or more")
        return named
    if target.landscape is not None:
        raise UsageError("--models all needs a cluster, not a landscape", hint="name the workloads, or give --cluster")
    cluster = chosen_cluster(target, store).name
    names: set[str] = set()
    page = store.studies(cluster=cluster, limit=500)
    names |= {item.study.workload.name for item in page.items}
    while page.next_cursor:
        page = store.studies(cluster=cluster, limit=500, cursor=page.next_cursor)
        names |= {item.study.workload.name for item in page.items}
    if not names:
        raise UsageError(f"nothing was tuned on {cluster} yet", hint="name the workloads: --models a,b")
    return sorted(names)


def plan_of_models(requests: Sequence[TuneRequest], testbed: Testbed) -> dict[str, Any]:
    """Return what `tune --models` would do: nothing is measured and nothing stored."""
    from ncclt.cli.tune_view import plan_document
    from ncclt.pipeline.many_models import shared_study, studies_of
    from ncclt.search.space import space_of

    studies = studies_of(requests, testbed)
    whole = shared_study(studies)
    space = space_of(testbed, whole.workload, requests[0].effort.process_wide)
    notes = tuple(dict.fromkeys(note for request in requests for note in testbed.cut(request.workload)[1]))
    document = plan_document(whole, testbed, space, requests[0], notes)
    del document["study"]
    # Calls per step are those of each workload; those of the union are weights.
    document["messages"] = [calls.message.label for calls in whole.workload.messages]
    return {"schema": document.pop("schema"), "studies": [study.name for study in studies], **document}


def models_document(documents: Sequence[dict[str, Any]], launches: int) -> dict[str, Any]:
    """Return the document of `tune --models --json`.

    Args:
        documents: of each workload, as `tune --json` prints it.
        launches: in all; those that served several workloads count once.
    """
    return {"schema": documents[0]["schema"], "launches": launches, "models": list(documents)}
