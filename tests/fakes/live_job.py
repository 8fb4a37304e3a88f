"""A job that was tuned live: python live_job.py GAIN BACKEND RANKS writes the blocks of rank 0."""

import json
import os
import sys
from pathlib import Path

from ncclt.prove.live_director import BLOCKS_FILE, STATE_FILE


def write_blocks(folder, gain, *, blocks=40, finished="", backend="nccl", ranks=8, steps=3):
    """Write blocks of the default and the first arm in turn, as if the coin had drawn them.

    Args:
        steps: counted ones of a block.
    """
    lines = []
    for number in range(blocks):
        arm = number % 2
        time_us = 1e6 / (1 + gain * arm)
        step_us = [time_us * (1, 1.001, 0.999)[step % 3] for step in range(steps)]
        step = (steps + 3) * (number + 1)
        lines.append([[arm, [0, 1, 2, 3], False, False, 0], step_us, [time_us] * 3, step, 1e6 * step])
    (folder / BLOCKS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / STATE_FILE).write_text(json.dumps({"finished": finished, "backend": backend, "ranks": ranks}))


if __name__ == "__main__":
    folder, (gain, backend, ranks) = Path(os.environ["NCCLT_LIVE_FOLDER"]), sys.argv[1:]
    write_blocks(folder, float(gain), backend=backend, ranks=int(ranks), steps=9)
