"""A job that was tuned live: python live_job.py GAIN BACKEND RANKS writes the blocks of rank 0."""

import json
import os
import sys
from pathlib import Path

from ncclt.prove.live_director import BLOCKS_FILE, STATE_FILE


def write_blocks(folder, gain, *, blocks=40, finished="", backend="nccl", ranks=8):
    """Write blocks of the default and the first arm in turn, as if the coin had drawn them."""
    lines = []
    for number in range(blocks):
        arm = number % 2
        time_us = 1e6 / (1 + gain * arm)
        lines.append(
            {
                "arm": arm,
                "drawn_from": [0, 1, 2, 3],
                "opens_pair": False,
                "closes_pair": False,
                "step_us": [time_us, time_us * 1.001, time_us * 0.999],
                "first_us": time_us,
                "steps": 6,
                "elapsed_us": 6e6 * (number + 1),
                "step": 6 * (number + 1),
            }
        )
    (folder / BLOCKS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / STATE_FILE).write_text(json.dumps({"finished": finished, "backend": backend, "ranks": ranks}))


if __name__ == "__main__":
    write_blocks(Path(os.environ["NCCLT_LIVE_FOLDER"]), float(sys.argv[1]), backend=sys.argv[2], ranks=int(sys.argv[3]))
