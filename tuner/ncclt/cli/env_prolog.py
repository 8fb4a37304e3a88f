"""`ncclt env --format slurm-taskprolog --policy-dir`: the TaskProlog that hands a job the plugin and its table."""

from __future__ import annotations

import argparse
from pathlib import Path

from ncclt.cli.offer import offered
from ncclt.core.attestation import Form
from ncclt.core.effect import CHOICE_VARIABLES
from ncclt.core.render_prolog import table_prolog
from ncclt.delivery import plan_handover, table_path, write_table
from ncclt.errors import NoRecommendationError, UsageError
from ncclt.plugin import find


def prolog_with_table(arguments: argparse.Namespace, cluster: str, server: str | None, storage: str | None) -> str:
    """Write the table where every node reads it, and return the script.

    Raises:
        UsageError: the plugin is not here, or the folder is not one that a table can be written to.
        NoRecommendationError: nothing fitting was published, or it has no table.
    """
    plugin = find()
    if plugin is None:
        raise UsageError("a table needs the tuner plugin", hint="build it with `ncclt plugin build`")
    folder: Path = arguments.policy_dir
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="make it once, on a file system that all nodes share")
    offer = offered(arguments, cluster, server, storage, with_table=True).offer()
    path = table_path(folder, offer.table)
    handover = plan_handover(
        offer, environ={}, argv=["srun"], plugin=plugin, table_file=path, shared=True, override=False
    )
    if handover.form is not Form.TABLE:
        raise NoRecommendationError(
            f"there is no table for {arguments.model} on {cluster}: {'; '.join(handover.notes)}",
            hint="without --policy-dir the script sets the variables that are proven",
        )
    try:
        write_table(path, offer.table)
        if arguments.report is not None:
            arguments.report.mkdir(parents=True, exist_ok=True)  # the plugin makes one level, the step's
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be written: {error.strerror}", hint="name other folders that all nodes share"
        ) from error
    comments = [f"# ncclt: {note}" for note in handover.notes if note.isprintable()]
    return table_prolog(
        handover.set_env,
        [f"# ncclt: recommendation {offer.recommendation}, table {path.name}", *comments],
        nodes=offer.nodes,
        rivals=[
            *CHOICE_VARIABLES,
            "NCCL_TUNER_PLUGIN",
            "NCCLT_POLICY",
            "NCCLT_POLICY_SHM",
            *dict(offer.table_variables),
        ],
        needed=[str(plugin), str(path)],
        report=str(arguments.report.absolute()) if arguments.report else "",
    )
