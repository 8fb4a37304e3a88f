"""The client as a program: `python client.py --server URL --cluster NAME --model NAME`, for images without ncclt."""

from __future__ import annotations

import argparse
import os
import sys

from .answer import FORMS, MARKS
from .fetch import ClientError, fetch_env


def main() -> int:
    """Print the environment and return the exit code: those of `ncclt env`."""
    parser = argparse.ArgumentParser(prog="client.py", description="Print what an ncclt server recommends for a job.")
    for name, meaning in (("server", "its address"), ("cluster", "its name")):
        variable = f"NCCLT_{name.upper()}"
        known = os.environ.get(variable)
        parser.add_argument(f"--{name}", default=known, required=not known, help=f"{meaning} [{variable}]")
    parser.add_argument("--model", required=True, help="name of the workload")
    for name, kind in (("--nodes", int), ("--gpus-per-node", int), ("--nccl-version", str)):
        parser.add_argument(name, type=kind, required=True, help="of the job")
    parser.add_argument("--format", default="export", choices=FORMS, metavar="FORMAT", help="of `ncclt env`")
    parser.add_argument("--allow", action="append", choices=list(MARKS), default=[], help="also such a result")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (default 5)")
    given = parser.parse_args()
    try:
        fetched = fetch_env(
            given.server,
            cluster=given.cluster,
            model=given.model,
            nodes=given.nodes,
            gpus_per_node=given.gpus_per_node,
            nccl_version=given.nccl_version,
            format=given.format,
            timeout_s=given.timeout,
            allow=given.allow,
            api_key=os.environ.get("NCCLT_API_KEY") or None,
        )
    except ClientError as error:
        sys.stderr.write(f"ncclt: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return 69 if error.is_outage else 2 if error.status == 422 else 3
    sys.stdout.write(fetched.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
