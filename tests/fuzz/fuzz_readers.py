"""Coverage-guided fuzzing of every reader of traces: `make fuzz`, ten minutes, not part of the test suite.

    python tests/fuzz/fuzz_readers.py [--seconds 600] [--reader NAME ...] [--seeds FOLDER]

Each reader gets an equal share of the time in a process of its own. A reader may refuse anything with one of ncclt's
own errors; every other exception, a hang of 20 s and more than 2 GB of memory are findings, and the input is kept in
the folder that is named. Seeds are the small files of FOLDER (default: the public traces beside the repository, where
they are), and a word of every format for readers without any.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
MAX_SEED_BYTES = 200_000
TABLE = (
    b"# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 2\n#  Rank  0 Pid 1\n#  Rank  1 Pid 1\n"
    b"#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    b"64 16 float sum -1 10 1 1 0 12 1 1 0\n# Avg bus bandwidth : 1\n"
)
WORDS = (
    b'{"traceEvents": []}',
    b'{"schema": "1.1.1", "nodes": []}',
    b"[]",
    b"{}",
    b"collective,size_bytes,calls\n",
    b'{"version":3,"config":{"nthreads":1,"ngpus":2},"results":[]}',
    TABLE,
)


def fuzz(name: str, corpus: str, findings: str, seconds: int) -> None:
    """Fuzz one reader in this process; does not return."""
    import atheris

    with atheris.instrument_imports(include=["ncclt"]):
        import ncclt.profile
        from ncclt.errors import NccltError

        reader = ncclt.profile.get_reader(name)
    path = Path(tempfile.mkdtemp()) / "input"

    def one_input(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(NccltError):
            reader.recognises(path)
            reader.read([path], name="fuzz")

    options = [
        f"-max_total_time={seconds}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        f"-max_len={MAX_SEED_BYTES}",
        f"-artifact_prefix={findings}/{name}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, corpus], one_input)
    atheris.Fuzz()


def collect_seeds(folder: Path, corpus: Path) -> int:
    """Copy small files into a corpus of this run; return how many."""
    for number, word in enumerate(WORDS):
        (corpus / f"word-{number}").write_bytes(word)
    found = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size <= MAX_SEED_BYTES]
    for number, path in enumerate(found):
        (corpus / f"seed-{number}").write_bytes(path.read_bytes())
    return len(found)


def main() -> int:
    """Fuzz all readers in turn and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="for all readers together")
    parser.add_argument("--reader", action="append", help="only this one; repeatable")
    parser.add_argument("--seeds", type=Path, default=SHARED)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, corpus, findings, seconds = arguments.one
        fuzz(name, corpus, findings, int(seconds))
        return 0

    from ncclt.profile import reader_names

    names = arguments.reader or list(reader_names())
    share = max(1, arguments.seconds // len(names))
    findings = Path(tempfile.mkdtemp(prefix="ncclt-fuzz-"))
    broken = []
    for name in names:
        with tempfile.TemporaryDirectory() as corpus:
            seeds = collect_seeds(arguments.seeds, Path(corpus))
            started = time.monotonic()
            command = [sys.executable, __file__, "--one", name, corpus, str(findings), str(share)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=share + 300)
        runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
        print(
            f"{name:18} {seeds} seeds, {runs} runs, {time.monotonic() - started:.0f} s: "
            f"{'clean' if done.returncode == 0 else 'FINDING'}",
            flush=True,
        )
        if done.returncode:
            broken.append(name)
            print(done.stderr[-3000:])
    print(f"{len(names) - len(broken)} passed, {len(broken)} failed" + (f"; inputs in {findings}" if broken else ""))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
