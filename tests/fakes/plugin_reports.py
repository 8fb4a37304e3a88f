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
    "ranks": 8,
    "nodes": 2,
    "policy": "/t.csv",
    "shared": False,
    "table": "rec1",
    "fnv1a": "0" * 16,
    "rows": 1,
    "rows_here": 1,
    "not_in_use": "",
    "started_us": 1_750_000_000_000_000,
    "written_us": 1_750_000_001_000_000,
    "finished": True,
}


def call(collective, size_bytes, calls, outcome="unmatched", choice="ring/simple/8"):
    """Return the line of calls of one kind; an unmatched one has no choice."""
    row = {"collective": collective, "size_bytes": size_bytes, "registered": False, "outcome": outcome, "calls": calls}
    algorithm, protocol, channels = choice.split("/")
    chosen = {"algorithm": algorithm, "protocol": protocol, "channels": int(channels)}
    return row if outcome == "unmatched" else row | chosen


def write_lines(*rows, **head):
    """Return the text of a report, with another head in part."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in ({**HEAD, **head}, *rows))


def write_report(path, *rows, **head):
    """Write a report to a file, and return its path."""
    path.write_text(write_lines(*rows, **head))
    return path
