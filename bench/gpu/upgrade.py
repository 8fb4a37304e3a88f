"""Is a newer NCCL slower on this GPU? `ncclt upgrade --gate` between two libraries, on ranks that share the GPU.

    python bench/gpu/upgrade.py --output FOLDER --nccl OLD --new NEW [--blocks N] [--recipe fake-hosts|one-host]

Writes upgrade.json, the document of the gate. Exit code: 0 = the gate came to an end, whatever its verdict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nccl import find_library
from nccl_table import VARIABLE

from live import add_options
from ncclt.errors import NccltError

HERE = Path(__file__).parent
ENDED = (0, 4, 5)
"""Exit codes of a gate with a decision: passed, undecided, regression."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--new", type=Path, required=True, help="libnccl.so.2 to upgrade to")
    parser.add_argument("--blocks", type=int, default=6, help="most blocks of two pairs (default 6)")
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        old, new = find_library(options.nccl), find_library(options.new)
    except NccltError as error:
        print(f"bench/gpu/upgrade.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    job = [sys.executable, str(HERE / "nccl_table.py"), "--output", str(options.output / "job")]
    job += [f"--ranks={options.ranks}", f"--recipe={options.recipe}", f"--samples={options.samples}"]
    job += [f"--sample-ms={options.sample_ms}", f"--limit={options.limit}"]
    for name in ("cuda", "max_channels"):
        if (value := getattr(options, name)) is not None:
            job.append(f"--{name.replace('_', '-')}={value}")
    gate = [sys.executable, "-m", "ncclt", "upgrade", "--gate", "--json", f"--blocks={options.blocks}"]
    gate += [f"--dir={options.output}", f"--from-env={VARIABLE}={old}", f"--to-env={VARIABLE}={new}", "--", *job]
    done = subprocess.run(gate, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in ENDED or not done.stdout:
        return 2
    (options.output / "upgrade.json").write_text(done.stdout)
    document = json.loads(done.stdout)
    for side, seen in document["seen"].items():
        print(f"{side}: NCCL {seen.get('NCCL', 'not seen')}")
    for group in document["groups"]:
        low, high = group["interval"]
        print(f"{group['name']}: {group['ratio']:.3f} ({low:.3f} to {high or float('inf'):.3f}) {group['decision']}")
    print(f"{document['decision']}: {document['reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
