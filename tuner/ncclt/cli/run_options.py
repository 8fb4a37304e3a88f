"""The options of `ncclt run`, and which of them cannot be combined."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from ncclt.cli.configuration import require_one_source
from ncclt.cli.env import Options, add_job, add_source, named_path
from ncclt.cli.job_request import add_conditions, allowed_differences
from ncclt.cli.output import report
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError

_DESCRIPTION = """\
Start a job with its validated NCCL settings: the per-size table with the tuner plugin, else variables.

  one node:               ncclt run --cluster leonardo --model bert -- torchrun --nproc-per-node 4 train.py
  srun or mpirun:         ncclt run --cluster ... --model ... -- srun ... python train.py
  torchrun on each node:  ncclt run --cluster ... --model ... --shared /shared/folder -- torchrun --nnodes 2 ...

All nodes of a job get the same settings, or none. Your own NCCL_* variables win, and a job that differs from the
measured one keeps the NCCL default. If anything fails here, the job starts with the NCCL default, and stderr says why.
The job does not start on wrong usage, with --fallback fail, or if other nodes may have got settings that this process
lacks (--shared, --policy, --job). More: docs/trainer/run.md.

The exit code is that of the job; 2 = wrong usage, 69 = its settings cannot be read, 126 or 127 = its command cannot be
started.
"""


def parser() -> Options:
    """Return the parser of the options before `--`."""
    made = Options(
        prog="ncclt run",
        usage="ncclt run --cluster NAME --model NAME [options] -- COMMAND ...",
        description=_DESCRIPTION,
    )
    add_job(made, model=False)
    made.add_argument(
        "--shared", type=named_path, metavar="FOLDER", help="Path to a folder that all nodes share. [NCCLT_SHARED]"
    )
    made.add_argument("--job", metavar="NAME", help="Name of the job, equal on all its nodes and unique. [NCCLT_JOB]")
    made.add_argument(
        "--report", type=named_path, metavar="FOLDER", help="Path to a folder for reports; check the job."
    )
    made.add_argument("--dry-run", action="store_true", help="Print the settings; start nothing.")
    add_source(made)
    add_conditions(made)
    made.add_help_options()
    delivery = made.add_argument_group("Delivery")
    delivery.add_argument("--policy", type=named_path, metavar="FILE", help="Path to a table to use, on all nodes.")
    delivery.add_argument(
        "--policy-dir", type=named_path, metavar="FOLDER", help="Path to a shared folder for plugin and hook."
    )
    delivery.add_argument("--no-plugin", action="store_true", help="Set variables only.")
    delivery.add_argument("--override", action="store_true", help="Replace NCCL_* variables that are set already.")
    delivery.add_argument(
        "--wait", type=float, default=30.0, metavar="SECONDS", help="Max seconds to wait for other nodes; default: 30."
    )
    delivery.add_argument("--step-times", action="store_true", help="With --report: time some steps for a roll-out.")
    server = made.add_argument_group("Server")
    server.add_argument(
        "--timeout", type=float, default=2.0, metavar="SECONDS", help="Max seconds to wait; default: 2."
    )
    server.add_argument(
        "--fallback",
        choices=("cached", "none", "fail"),
        default="cached",
        help="If the server is down: cached = use its last answer (default), none = keep the NCCL default, fail = do "
        "not start the job, whatever fails.",
    )
    server.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    return made


def parsed(options: Sequence[str], command: Sequence[str]) -> argparse.Namespace:
    """Parse the options; exit with the code for wrong usage if they are invalid.

    Raises:
        SystemExit: they are invalid, or --help is among them.
    """
    made = parser()
    arguments = made.parse_args(options)
    arguments.allow_difference = allowed_differences(arguments.allow_difference)
    try:
        _check(arguments, command)
    except UsageError as error:
        made.exit(report(error))
    return arguments


def _check(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    if not any(command[:1]):  # also an empty word, as of a variable that is not set
        raise UsageError("no command to run", hint="put it after --: ncclt run --cluster C --model M -- torchrun ...")
    if arguments.policy is None and not arguments.model:
        raise UsageError("--model is needed", hint="or --policy FILE; put the command after --")
    for name in ("nodes", "gpus_per_node"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if not (0 < arguments.timeout < math.inf):
        raise UsageError(f"--timeout must be above 0 seconds, not {arguments.timeout:g}")
    if arguments.nccl_version:
        NcclVersion.parse(arguments.nccl_version)  # a typo is wrong usage, not an outage
    if not 0 <= arguments.wait <= 600:
        raise UsageError(f"--wait must be 0 to 600 seconds, not {arguments.wait:g}")
    require_one_source(arguments.server, arguments.storage)
    if arguments.policy is not None and arguments.shared is not None:
        raise UsageError("--policy is a decision already: --shared has nothing to decide", hint="leave one of them out")
    if arguments.step_times and arguments.report is None:
        raise UsageError("--step-times needs --report", hint="name a folder that all nodes share")
    if arguments.policy is not None and arguments.no_plugin:
        raise UsageError("--policy is a table for the plugin", hint="leave --no-plugin out")
