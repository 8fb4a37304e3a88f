"""The plugin under gcc's sanitizers: harness.c and delegation.c play NCCL, fuzz_table.c throws text at the parser."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from program import run_program

from ncclt.core.nccl_version import NcclVersion
from ncclt.nccl.tuner_plugin.build import compiler, source_folder, sources
from ncclt.nccl.tuner_plugin.compact_table import encode_table
from ncclt.nccl.tuner_table import table_text

HERE = Path(__file__).parent
FUZZ = HERE.parents[1] / "fuzz" / "fuzz_table.c"
GOLDEN = HERE.parents[1] / "golden" / "env"
ROUNDS = 20_000
PLAIN = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1"]


def sanitized(sanitizers):
    return [
        compiler(),
        "-std=c11",
        "-D_POSIX_C_SOURCE=200809L",
        "-g",
        "-O1",
        f"-fsanitize={sanitizers}",
        "-fno-sanitize-recover=all",
    ]


def compile_with(sanitizers, files, target, *extra):
    """Compile a program, or skip where the compiler lacks the sanitizers' runtime."""
    if compiler() is None:
        pytest.skip("no C compiler here")
    probe = target.with_suffix(".probe.c")
    probe.write_text("int main(void) { return 0; }\n")
    checked = sanitized(sanitizers)
    probed = run_program([*checked, "-o", target, probe])
    if probed.returncode or subprocess.run([target], capture_output=True).returncode:
        pytest.skip(f"this compiler has no working -fsanitize={sanitizers} here")
    done = run_program(
        [*checked, "-Wall", "-Wextra", "-Werror", *extra, f"-I{source_folder()}", "-o", target, *files, "-lpthread"]
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("sanitizers", ["address,undefined", pytest.param("thread", marks=pytest.mark.thorough)])
def test_every_api_threads_and_ranges_under_a_sanitizer(sanitizers, tmp_path):
    program = compile_with(sanitizers, [*sources(), HERE / "harness.c"], tmp_path / "harness")

    done = run_program([program, tmp_path])

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100_000
    # The number of the one that all threads used: no count is lost where they meet.
    [shared] = tmp_path.glob("ncclt-plugin.*.16.*.jsonl")
    assert sum(json.loads(line)["calls"] for line in shared.read_text().splitlines()[1:]) == 4 * 20_000 // 2
    # 3 communicators of 5 APIs, one of API v2, one shared and 4 of the threads, a live one, and one that was left open.
    assert len(list(tmp_path.glob("ncclt-plugin.*.jsonl"))) == 15 + 1 + 1 + 4 + 1 + 1
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    "sanitizers", ["address,undefined", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("thread", ""))]
)
def test_threads_forks_and_exits_under_a_sanitizer(sanitizers, tmp_path):
    """Children of a process whose threads open communicators waited for ever for a lock that no thread held."""
    files, rounds = [*sources(), HERE / "churn.c"], 3
    if sanitizers:
        program = compile_with(sanitizers, files, tmp_path / "churn")
    else:
        if compiler() is None:
            pytest.skip("no C compiler here")
        program, rounds = tmp_path / "churn", 10
        flags = [*PLAIN, "-DCHILDREN_OPEN", f"-I{source_folder()}"]
        subprocess.run([compiler(), *flags, "-o", program, *files, "-lpthread"], check=True)
    # The process ends with communicators open. Silent, then with reports.
    silent = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    for environ in (silent, {**silent, "NCCLT_PLUGIN_REPORT": str(tmp_path / "reports")}):
        done = subprocess.run(
            [program, tmp_path, str(rounds)], env=environ, capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", ""), environ.get("NCCLT_PLUGIN_REPORT")


def test_arming_amid_a_question_is_refused_or_seen_in_every_interleaving(tmp_path):
    parts = [path for path in sources() if path.name != "live.c"]
    program = compile_with("address,undefined", [*parts, HERE / "arming.c"], tmp_path / "arming")
    rows = ["allreduce,0,4096,ring,ll,4,-1,-1"]
    plan = encode_table(table_text(rows, table_id="r", version=NcclVersion(2, 28, 9), nodes=2, ranks=16))

    done = run_program([program, plan])

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


def other_tuner(target, flags, api, *extra):
    """Compile the tuner of other_tuner.c as a library."""
    target.parent.mkdir(parents=True, exist_ok=True)
    words = [*flags, "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{source_folder()}", f"-DAPI={api}", *extra]
    subprocess.run([*words, "-o", target, HERE / "other_tuner.c"], check=True)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_another_tuner_of_any_api_answers_what_no_row_covers(sanitizers, tmp_path):
    program = compile_with(sanitizers, [*sources(), HERE / "delegation.c"], tmp_path / "delegation")
    for api in range(2, 8):
        other_tuner(tmp_path / f"api{api}.so", sanitized(sanitizers), api)
    other_tuner(tmp_path / "incomplete.so", sanitized(sanitizers), 5, "-DINCOMPLETE", "-Wno-unused-function")
    other_tuner(tmp_path / "ours.so", sanitized(sanitizers), 5, '-DNAME="ncclt"')

    done = run_program([program, tmp_path])

    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 50_000
    heads = [json.loads(path.read_text().splitlines()[0]) for path in tmp_path.glob("ncclt-plugin.*.jsonl")]
    pairs = {(head["tuner_api"], head["delegate_api"]) for head in heads if head["delegate_api"]}
    assert pairs == {(api, other) for api in range(2, 8) for other in range(2, 8)}
    [used] = [head for head in heads if (head["tuner_api"], head["delegate_api"]) == (6, 4)]
    # Of 32 calls without a row and one whose row NCCL does not offer, 4 made the tuner fail.
    assert (used["delegate_name"], used["delegated"], used["delegate_failures"]) == ("other", 29, 4)
    assert used["delegate"] == str(tmp_path / "api4.so")
    reasons = {head["delegate_not_in_use"].replace(f"{tmp_path}/", "") for head in heads}
    assert reasons == {
        "",
        "the tuner of incomplete.so lacks functions of API v5",
        *(f"the tuner other of api{api}.so could not begin: error 3" for api in range(3, 8)),  # newer than NCCL's
        "NCCLT_DELEGATE=missing.so is no tuner plugin that can be loaded",
        "NCCLT_DELEGATE=table.csv is no tuner plugin that can be loaded",
        "NCCLT_DELEGATE=ours.so is the plugin of ncclt itself",
    }


@pytest.fixture(scope="module")
def asking(tmp_path_factory):
    """The program of delegation.c."""
    if compiler() is None:
        pytest.skip("no C compiler here")
    program = tmp_path_factory.mktemp("asking") / "delegation"
    files = [*sources(), HERE / "delegation.c"]
    subprocess.run([compiler(), *PLAIN, f"-I{source_folder()}", "-o", program, *files, "-lpthread"], check=True)
    return program


@pytest.fixture
def said(tmp_path, asking):
    """Return what the plugin writes to NCCL's log, in an environment where these libraries can be found."""

    def said_with(*libraries, **variables):
        for name, api, *extra in libraries:
            other_tuner(tmp_path / "lib" / name, [compiler(), *PLAIN], api, *extra)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NCCL")}
        environ = {**kept, "LD_LIBRARY_PATH": str(tmp_path / "lib"), **variables}
        return run_program([asking, "open"], env=environ, check=True).stdout

    return said_with


ASKED = "no table: NCCLT_TABLE and NCCLT_POLICY are not set; every call goes to the tuner other of"


def test_it_finds_the_tuner_that_nccl_would_find(said):
    network = {"NCCL_NET_PLUGIN": "absent,mine", "LOADED_BEFORE": "libnccl-net-mine.so"}

    assert f"{ASKED} libnccl-tuner.so (API v6)" in said(("libnccl-tuner.so", 6))
    assert f"{ASKED} libnccl-net-mine.so (API v3)" in said(
        ("libnccl-tuner.so", 5, '-DNAME="ncclt"'), ("libnccl-net-mine.so", 3), **network
    )
    assert f"{ASKED} libnccl-net.so (API v7)" in said(
        ("libnccl-tuner.so", 5, '-DNAME="ncclt"'), ("libnccl-net.so", 7), LOADED_BEFORE="libnccl-net.so"
    )
    assert f"{ASKED} libnccl-tuner-vendor.so (API v2)" in said(("libnccl-tuner-vendor.so", 2), NCCLT_DELEGATE="vendor")


def test_a_network_plugin_that_nccl_did_not_load_is_not_asked(said):
    assert said(("libnccl-net.so", 6)).rstrip().endswith("NCCLT_POLICY are not set; keeping the NCCL default")
    assert "keeping the NCCL default" in said(("libnccl-tuner.so", 6), NCCLT_DELEGATE="none")


def test_no_text_breaks_the_parser(tmp_path):
    program = compile_with(
        "address,undefined",
        [source_folder() / "table.c", source_folder() / "trusted.c", FUZZ],
        tmp_path / "fuzz",
        "-DNCCLT_FUZZ_DRIVER",
    )
    rich = tmp_path / "rich.csv"
    rich.write_text(
        "# ncclt-table 1 id=r nccl=2.28.9 later=1\nallreduce,0,65536,tree,ll,2,-1,-1,-1,-1\n"
        "reduce,1,18446744073709551615,ring,ll128,-1,2,16,-1,-1\n\nallgather,5,9,pat,simple,64,-1,16,-1,-1\n"
    )
    compact = tmp_path / "compact"
    compact.write_text(encode_table((GOLDEN / "tuned.tuner-csv").read_text()))

    done = run_program([program, str(ROUNDS), rich, compact, *sorted(GOLDEN.glob("*.tuner-csv"))])

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS} rounds\n"
