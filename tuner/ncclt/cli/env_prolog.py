"""`ncclt env --format slurm-taskprolog`: the TaskProlog that hands jobs the variables, or the plugin and its table.

Only `json` is requested from server or store; the script is made here from the checked document.
"""

from __future__ import annotations

import argparse
import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncclt.cli.render import say
from ncclt.client.answer import comment_lines
from ncclt.core.attestation import Form
from ncclt.core.recommendation import Request
from ncclt.deliver.answer import Answer, AnswerSource, request_answer
from ncclt.deliver.attest import CHOICE_VARIABLES
from ncclt.deliver.job_info import CHANGING_VARIABLES, JobInfo
from ncclt.deliver.job_plan import RIVALS_OF_TABLE, JobPlan, Means, find_plugin, plan_job
from ncclt.deliver.node_files import place_plugin, table_path, write_table
from ncclt.deliver.render.formats import render_variables
from ncclt.deliver.render.prolog import table_prolog
from ncclt.errors import NoRecommendationError, UsageError
from ncclt.nccl.tuner_plugin.compact_table import table_file_environment


def prolog(arguments: argparse.Namespace, request: Request, source: AnswerSource) -> str:
    """Return the script; with --policy-dir also write table and plugin to that folder.

    Raises:
        UsageError: an option does not fit, the plugin is missing, the folder cannot be written, or --all-users was
            given and not all users can read it.
        NoRecommendationError: nothing fitting was published, it is undecided, or it has no table.
    """
    if arguments.report is not None and arguments.policy_dir is None:
        raise UsageError("--report needs --policy-dir", hint="the reports are the plugin's")
    if arguments.all_users and arguments.output is not None:
        _check_reachable(arguments.output.absolute().parent, "the script")
    answer = request_answer(request, source, from_cache=arguments.fallback == "cached", warn=say)
    job = {**answer.document, "model": arguments.model}
    uid = None if arguments.all_users else os.getuid()
    if arguments.policy_dir is not None:
        text = _with_table(arguments, answer, job, uid, _plugin(arguments))
    elif job["decision"] == "undecided":
        raise NoRecommendationError(
            f"no variables are validated for {job['model']}: undecided",
            hint="use --policy-dir to deliver the table where it is validated",
        )
    else:
        text = render_variables(job, form="slurm-taskprolog", uid=uid)
    say(f"ncclt: the script acts only in jobs that export NCCLT_MODEL={shlex.quote(arguments.model)}")
    return text


def _plugin(arguments: argparse.Namespace) -> Path:
    plugin, why = find_plugin()
    if plugin is None:
        raise UsageError(why or "a table needs the tuner plugin", hint="build it with `ncclt admin plugin build`")
    if not arguments.policy_dir.is_dir():
        raise UsageError(
            f"there is no folder {arguments.policy_dir}", hint="make it once, on a file system that all nodes share"
        )
    if arguments.all_users:
        _check_reachable(arguments.policy_dir.absolute(), "the table")
    return plugin


def _check_reachable(path: Path, content: str) -> None:
    """Refuse a path that users other than its owner and group cannot read.

    Raises:
        UsageError: the file is not readable, or a folder above it cannot be entered.
    """
    # Both the link and its target are checked.
    for place in dict.fromkeys(way for end in (path, path.resolve()) for way in (*reversed(end.parents), end)):
        word, bit = ("x", stat.S_IXOTH) if place.is_dir() else ("r", stat.S_IROTH)
        if not place.stat().st_mode & bit:
            raise UsageError(
                f"other users cannot read {content}: {place} is not open to them", hint=f"chmod o+{word} {place}"
            )


def _with_table(
    arguments: argparse.Namespace, answer: Answer, job: Mapping[str, Any], uid: int | None, plugin: Path
) -> str:
    folder: Path = arguments.policy_dir
    path = table_path(folder, answer.table)

    def make_plan(plugin: Path) -> JobPlan:
        # The tasks' own variables are compared by the script, on their nodes. Older releases of Slurm cut a line of a
        # prolog's output at 4 KiB, so the table is a file with its checksum.
        table = table_file_environment(answer.table, path) if answer.table else {}
        return plan_job(answer, JobInfo(argv=("srun",)), Means(plugin=plugin, table=table, hook=None, shared=True))

    plan = make_plan(plugin)
    if plan.form is not Form.TABLE:
        raise NoRecommendationError(
            f"there is no table for {arguments.model}: {'; '.join(plan.notes)}",
            hint="leave --policy-dir out to set the validated variables",
        )
    try:
        write_table(path, answer.table)
        placed = place_plugin(folder, plugin)
        if arguments.report is not None:
            arguments.report.mkdir(parents=True, exist_ok=True)  # the plugin makes one level, the step's
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be written: {error.strerror}", hint="name other folders that all nodes share"
        ) from error
    plan = make_plan(placed)
    if arguments.all_users:
        _check_reachable(placed, "the plugin")
    if arguments.all_users and arguments.report is not None:
        _check_reachable(arguments.report.absolute(), "the reports")
        if arguments.report.stat().st_mode & 0o003 != 0o003:
            raise UsageError(
                f"other users cannot write reports to {arguments.report}", hint=f"chmod 1777 {arguments.report}"
            )
    return table_prolog(
        job,
        dict(plan.set_env),
        comment_lines([f"ncclt: recommendation {answer.recommendation}, table {path.name}", *plan.notes]),
        uid=uid,
        rivals=[*CHOICE_VARIABLES, *CHANGING_VARIABLES, "NCCL_TUNER_PLUGIN", *RIVALS_OF_TABLE],
        needed=[str(placed), str(path)],
        report=str(arguments.report.absolute()) if arguments.report else "",
    )
