"""The options of `ncclt run`, and which of them cannot be combined."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from ncclt.cli.env import Options, named_path
from ncclt.cli.job_request import add_differences, add_limits, allowed_differences
from ncclt.cli.output import report
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError

_DESCRIPTION = """\
Start a training with what was proven for it: the per-size table if the tuner plugin is installed, else variables.

  one node:               ncclt run --cluster leonardo --model bert -- torchrun --nproc-per-node 4 train.py
  srun or mpirun:         ncclt run --cluster ... --model ... -- srun ... python train.py
  torchrun on each node:  ncclt run --cluster ... --model ... --shared /shared/folder -- torchrun --nnodes 2 ...

All nodes of a job get one decision, or nothing is set. With PyTorch the ranks agree on the table before they use it;
set NCCLT_AGREEMENT=none for a program without PyTorch. Your own NCCL_* variables win, and a job that differs from the
measured one gets nothing. If anything fails here (server, store, configuration, cache, disk, ncclt itself), the
command starts unchanged, and stderr says why. It does not start only in these cases:

  --fallback fail was given;
  with --shared, --policy or --job: other nodes may have got what this process lacks;
  wrong usage: an unknown option, an invalid number, no command.

Without --report this process becomes the command. With --report it waits for the command: if ncclt is killed
(SIGKILL), the command and everything it started get SIGTERM, and SIGKILL 30 s later.
The exit code is that of the command; 2 = wrong usage, 69 = what the job uses cannot be read here or, with --fallback
fail, nothing can be fetched; 126 or 127 = the command cannot be started.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options before `--`."""
    made = Options(
        prog="ncclt run",
        usage="ncclt run --cluster NAME --model NAME [options] -- COMMAND ...",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--cluster", help="name of the cluster [NCCLT_CLUSTER]")
    made.add_argument("--model", help="name of the workload")
    made.add_argument("--nodes", type=int, help="nodes of the job; default: from its command or launcher")
    made.add_argument("--gpus-per-node", type=int, help="GPUs per node of the job, likewise")
    made.add_argument("--nccl-version", help="NCCL version of the job, likewise")
    add_limits(made)
    made.add_argument("--server", help="fetch from this ncclt server instead of the local store [NCCLT_SERVER]")
    made.add_argument("--storage", help="database URL of the local store [NCCLT_STORAGE]")
    made.add_argument(
        "--timeout", type=float, default=2.0, help="seconds to wait for the server, all requests together (default 2)"
    )
    made.add_argument(
        "--fallback",
        choices=("cached", "none", "fail"),
        default="cached",
        help="if the server is away: cached = use its last good answer, else the NCCL default (default); none = use "
        "the NCCL default; fail = do not start the command, whatever fails",
    )
    made.add_argument(
        "--policy", type=named_path, metavar="FILE", help="use this table, on a file system that all nodes share"
    )
    made.add_argument(
        "--policy-dir",
        type=named_path,
        metavar="FOLDER",
        help="folder that all nodes share, for the plugin and the hook by which the ranks agree",
    )
    made.add_argument(
        "--shared",
        type=named_path,
        metavar="FOLDER",
        help="folder that all nodes share, for the job's one decision and its tables [NCCLT_SHARED]",
    )
    made.add_argument(
        "--job",
        metavar="NAME",
        help="name of the job, equal on all nodes and new for every start: the server keeps one answer for it, and "
        "--shared one decision [NCCLT_JOB]",
    )
    made.add_argument(
        "--wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="with --shared: wait so long for the other nodes, or for an answer of one of them (default 30)",
    )
    made.add_argument("--no-plugin", action="store_true", help="set variables only")
    add_differences(made)
    made.add_argument("--override", action="store_true", help="replace NCCL_* variables that are set already")
    made.add_argument(
        "--report",
        type=named_path,
        metavar="FOLDER",
        help="keep reports there and say afterwards whether it took effect",
    )
    made.add_argument(
        "--step-times",
        action="store_true",
        help="with --report: where a revision is being rolled out, time some optimizer steps and report them",
    )
    made.add_argument("--dry-run", action="store_true", help="show on stderr what would be set; start nothing")
    made.add_argument("--debug", action="store_true", help="show the traceback of what failed")
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
    if arguments.server and arguments.storage:
        raise UsageError("--server and --storage cannot be combined", hint="give one of them")
    if arguments.policy is not None and arguments.shared is not None:
        raise UsageError("--policy is a decision already: --shared has nothing to decide", hint="leave one of them out")
    if arguments.step_times and arguments.report is None:
        raise UsageError("--step-times needs --report", hint="name a folder that all nodes share")
    if arguments.policy is not None and arguments.no_plugin:
        raise UsageError("--policy is a table for the plugin", hint="leave --no-plugin out")
