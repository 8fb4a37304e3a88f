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
        default = os.environ.get(variable)
        parser.add_argument(f"--{name}", default=default, required=not default, help=f"{meaning} [{variable}]")
    parser.add_argument("--model", required=True, help="name of the workload")
    for name, kind in (("--nodes", int), ("--gpus-per-node", int), ("--nccl-version", str)):
        parser.add_argument(name, type=kind, required=True, help="of the job")
    parser.add_argument("--format", default="export", choices=FORMS, metavar="FORMAT", help="of `ncclt env`")
    parser.add_argument("--allow", action="append", choices=list(MARKS), default=[], help="also such a result")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (default 5)")
    options = vars(parser.parse_args())
    server, timeout_s, key = options.pop("server"), options.pop("timeout"), os.environ.get("NCCLT_API_KEY") or None
    try:
        fetched = fetch_env(server, timeout_s=timeout_s, api_key=key, **options)
    except ClientError as error:
        sys.stderr.write(f"ncclt: {error.message}\n" + (f"  hint: {error.hint}\n" if error.hint else ""))
        return 69 if error.is_outage else 2 if error.status == 422 else 3
    sys.stdout.write(fetched.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
