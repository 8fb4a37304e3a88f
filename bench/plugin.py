"""Cost of one decision of the tuner plugin, in ns, next to a linear scan of the same table, an empty plugin, another
tuner that answers what no row covers, and a plan that can change while the job runs.

    python bench/plugin.py [--rules 10,100,1000] [--calls 100000] [--json]

NCCL asks the plugin at every collective. The linear scan is how NVIDIA's example plugin looks a call up; it is written
anew in bench/plugin_calls.c. All rules are of one collective, which is the worst for a search. Needs a C compiler.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from ncclt.nccl.tuner_plugin.build import FLAGS, compiler, source_folder, sources
from output import Rows, build_parser

TARGET_NS, DELEGATION_TARGET_NS = 30.0, 20.0
DELEGATE = "other_tuner.so"


def compiled(folder: Path) -> Path:
    cc = compiler()
    if cc is None:
        raise SystemExit("bench/plugin.py needs a C compiler, for example gcc")
    program = folder / "plugin_calls"
    flags = [flag for flag in FLAGS if flag != "-fPIC"]
    files = [*sources(), Path(__file__).with_name("plugin_calls.c")]
    subprocess.run([cc, *flags, f"-I{source_folder()}", "-o", program, *files], check=True)
    subprocess.run(
        [cc, *FLAGS, "-DDELEGATE", "-shared", f"-I{source_folder()}", "-o", program.with_name(DELEGATE), files[-1]],
        check=True,
    )
    return program


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--rules", default="10,100,1000", help="sizes of the table, with commas; at most 2048")
    parser.add_argument("--calls", type=int, default=100_000, help="decisions per round; the best of 41 rounds counts")
    arguments = parser.parse_args()
    try:
        tables = [int(word) for word in arguments.rules.split(",")]
    except ValueError:
        parser.error(f"--rules takes numbers with commas, not {arguments.rules!r}")
    if not all(1 <= rules <= 2048 for rules in tables) or arguments.calls < 1:
        parser.error("--rules must be 1 to 2048, and --calls at least 1")
    rows = Rows(as_json=arguments.json)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compiled(folder)
        environ = {key: value for key, value in os.environ.items() if not key.startswith("NCCLT_")}
        environ["NCCLT_POLICY"] = str(folder / "table.csv")
        for rules in tables:
            done = subprocess.run(
                [program, str(rules), str(arguments.calls), folder / DELEGATE],
                cwd=folder,
                env=environ,
                check=True,
                capture_output=True,
                text=True,
            )
            for line in done.stdout.splitlines():
                case, nanoseconds = line.split()
                rows.add({"case": case, "rules": rules, "ns_per_decision": float(nanoseconds)})
    rows.end(
        f"target: ncclt at most {TARGET_NS:.0f} ns at 1,000 rules, and ncclt-delegating at most "
        f"{DELEGATION_TARGET_NS:.0f} ns above delegate"
    )


if __name__ == "__main__":
    main()
