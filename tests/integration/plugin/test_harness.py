"""The plugin under the sanitizers of gcc: harness.c plays NCCL, fuzz_table.c throws text at the parser."""

import json
import subprocess
from pathlib import Path

import pytest

from ncclt.nccl.tuner_plugin.build import compiler, source_folder, sources

HERE = Path(__file__).parent
FUZZ = HERE.parents[1] / "fuzz" / "fuzz_table.c"
GOLDEN = HERE.parents[1] / "golden" / "env"
ROUNDS = 20_000


def compile_with(sanitizers, files, target, *extra):
    """Compile a program, or skip where the compiler lacks the sanitizers' runtime."""
    if compiler() is None:
        pytest.skip("no C compiler here")
    probe = target.with_suffix(".probe.c")
    probe.write_text("int main(void) { return 0; }\n")
    checked = [compiler(), "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-g", "-O1", f"-fsanitize={sanitizers}",
               "-fno-sanitize-recover=all"]  # fmt: skip
    probed = subprocess.run([*checked, "-o", target, probe], capture_output=True, text=True)
    if probed.returncode or subprocess.run([target], capture_output=True).returncode:
        pytest.skip(f"this compiler has no working -fsanitize={sanitizers} here")
    done = subprocess.run(
        [*checked, "-Wall", "-Wextra", "-Werror", *extra, f"-I{source_folder()}", "-o", target, *files, "-lpthread"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_every_api_threads_and_ranges_under_a_sanitizer(sanitizers, tmp_path):
    program = compile_with(sanitizers, [*sources(), HERE / "harness.c"], tmp_path / "harness")

    done = subprocess.run([program, tmp_path], capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100_000
    # The number of the one that all threads used: no count is lost where they meet.
    [shared] = tmp_path.glob("ncclt-plugin.*.13.*.jsonl")
    assert sum(json.loads(line)["calls"] for line in shared.read_text().splitlines()[1:]) == 4 * 20_000 // 2
    # 3 communicators of 4 APIs, one of API v2, one shared and 4 of the threads, and one that was left open.
    assert len(list(tmp_path.glob("ncclt-plugin.*.jsonl"))) == 12 + 1 + 1 + 4 + 1
    assert not list(tmp_path.glob("*.part"))


def test_no_text_breaks_the_parser(tmp_path):
    program = compile_with(
        "address,undefined", [source_folder() / "table.c", FUZZ], tmp_path / "fuzz", "-DNCCLT_FUZZ_DRIVER"
    )
    rich = tmp_path / "rich.csv"
    rich.write_text(
        "# ncclt-table 1 id=r nccl=2.28.9 later=1\nallreduce,0,65536,tree,ll,2,-1,-1,-1,-1\n"
        "reduce,1,18446744073709551615,ring,ll128,-1,2,16,-1,0\n\nallgather,5,9,pat,simple,64,-1,16,-1,1\n"
    )

    done = subprocess.run(
        [program, str(ROUNDS), rich, *sorted(GOLDEN.glob("*.tuner-csv"))], capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS} rounds\n"
