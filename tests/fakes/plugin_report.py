"""Reports as the tuner plugin writes them."""

import json

HEAD = {
    "ncclt_plugin_report": 1,
    "plugin": "0.1.0",
    "tuner_api": 5,
    "nccl": "2.28.9",
    "host": "n1",
    "pid": 40,
    "launch_rank": 0,
    "communicator": "00000000000000aa",
    "number": 0,
    "ranks": 2,
    "nodes": 1,
    "policy": "/t.csv",
    "shared": False,
    "table": "r-1",
    "fnv1a": "0" * 16,
    "rows": 1,
    "rows_here": 1,
    "not_in_use": "",
    "started_us": 1_750_000_000_000_000,
    "written_us": 1_750_000_001_000_000,
    "finished": True,
}
APPLIED = {"outcome": "applied", "algorithm": "ring", "protocol": "simple", "channels": 8}


def line(collective, size, calls, **more):
    """A row: calls of one size."""
    row = {"collective": collective, "size_bytes": size, "registered": False, "outcome": "unmatched", "calls": calls}
    return row | more


def write_lines(*rows, **head):
    """Return the text of a report, by default of rank 0 of 2."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in ({**HEAD, **head}, *rows))


def write_report(path, *rows, **head):
    """Write a report, and return its path."""
    path.write_text(write_lines(*rows, **head))
    return path
