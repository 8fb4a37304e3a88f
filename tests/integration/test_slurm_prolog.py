"""The TaskProlog that hands over plugin and table, by shells and by a real Slurm of two nodes."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import run_job
from program import run_program

from ncclt.deliver.node_files import place_plugin
from ncclt.nccl.tuner_plugin import LIBRARY_NAME

store, serving = run_job.store, run_job.serving

# One rank of eight that plays NCCL's part with what its environment gives it.
RANK = """
import os
from pathlib import Path
from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin
plugin = LoadedPlugin(Path(os.environ["NCCL_TUNER_PLUGIN"]))
with plugin.communicator(api=5, ranks=8, nodes=2) as communicator:
    communicator.ask(4, 4096)
print("ran", flush=True)
"""
MINE = {"NCCLT_MODEL": "bert", "SLURM_JOB_UID": str(os.getuid())}
STEP = {
    **MINE,
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "1",
    "SLURMD_NODENAME": "n1",
}


@pytest.fixture
def prolog(tmp_path, store, library):
    """The script, written with a table in tables/ and reports in reports/."""
    (tmp_path / "tables").mkdir()
    words = ["--policy-dir", str(tmp_path / "tables"), "--report", str(tmp_path / "re ports")]
    assert written(tmp_path, "--storage", store.url, *words, NCCLT_PLUGIN=library).returncode == 0
    return tmp_path / "prolog.sh"


OTHER_JOBS = [
    {"NCCLT_MODEL": ""},
    {"NCCLT_MODEL": "gpt"},
    {"SLURM_JOB_UID": "4711"},
    {"SLURM_STEP_NUM_NODES": "1"},
    {"SLURM_STEP_TASKS_PER_NODE": "4,2"},
    {"SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
    {"SLURM_GPUS_ON_NODE": "8"},
    {"NCCLT_LAUNCH": "1a2b-000001"},
]
"""Another workload or none, another user, another shape, and a trial of ncclt."""


def written(tmp_path, *words, **more):
    where = ["--format", "slurm-taskprolog", "--output", str(tmp_path / "prolog.sh")]
    return run_program(
        [*run_job.NCCLT, "env", *run_job.NAMES, *where, *words], env=run_job.job_environ(tmp_path, **more)
    )


def said(prolog, shell="sh", **environ):
    """Run the script with nothing but a shell; return its exit code and lines."""
    done = run_program([shutil.which(shell), prolog], env={"PATH": "/nowhere", **environ})
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_the_step_of_the_measured_size_gets_plugin_table_and_reports(prolog, library, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    code, lines = said(prolog, shell, **STEP)
    given = dict(line.removeprefix("export ").split("=", 1) for line in lines)

    assert code == 0
    (table,) = (tmp_path / "tables").glob("*.csv")
    (plugin,) = (tmp_path / "tables").glob(f"*/{LIBRARY_NAME}")
    assert (given["NCCL_TUNER_PLUGIN"], given["NCCLT_POLICY"]) == (str(plugin), str(table))
    assert f"fnv1a={given['NCCLT_POLICY_CHECKSUM']}" in table.read_text()
    assert plugin.read_bytes() == library.read_bytes()
    assert given["NCCLT_PLUGIN_REPORT"] == f"{tmp_path}/re ports/7.1.0"
    assert given["NCCLT_RECOMMENDATION"] == "0c0ffee1"
    assert said(prolog, shell, **STEP, NCCL_PROTO="LL") == (0, [])
    for other in OTHER_JOBS:
        assert said(prolog, shell, **STEP | other) == (0, []), other
    mine = said(prolog, shell, **STEP, NCCLT_PLUGIN_REPORT="/mine")[1]
    assert [line for line in lines if line not in mine] == [f"export NCCLT_PLUGIN_REPORT={tmp_path}/re ports/7.1.0"]


@pytest.mark.parametrize("lacking", ["*.csv", f"*/{LIBRARY_NAME}"])
def test_a_node_that_lacks_table_or_plugin_does_not_start(prolog, tmp_path, lacking):
    (file,) = (tmp_path / "tables").glob(lacking)
    file.unlink()

    assert said(prolog, **STEP) == (1, [f"print ncclt: {file} cannot be read on n1, so the task does not start"])


def test_what_cannot_be_handed_over_is_refused(tmp_path, store, library):
    missing = written(tmp_path, "--storage", store.url, "--policy-dir", str(tmp_path / "no"), NCCLT_PLUGIN=library)
    assert (missing.returncode, "make it once" in missing.stderr) == (2, True)
    unbuilt = written(
        tmp_path, "--storage", store.url, "--policy-dir", str(tmp_path), NCCLT_PLUGIN=tmp_path / "none.so"
    )
    assert (unbuilt.returncode, "ncclt admin plugin build" in unbuilt.stderr) == (2, True)
    alone_report = written(tmp_path, "--storage", store.url, "--report", str(tmp_path), NCCLT_PLUGIN=library)
    assert alone_report.returncode == 2
    for words in (("--policy-dir", str(tmp_path)), ("--all-users",)):
        assert (
            written(tmp_path, "--storage", store.url, *words, "--format", "export", NCCLT_PLUGIN=library).returncode
            == 2
        )
    assert not (tmp_path / "prolog.sh").exists()


@pytest.fixture
def public():
    """A folder that every user can get into."""
    with tempfile.TemporaryDirectory(prefix="ncclt-public-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("tables", "reports", "closed"):
            (folder / part).mkdir()
            (folder / part).chmod({"tables": 0o755, "reports": 0o1777, "closed": 0o700}[part])
        yield folder


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ("", ""),
        ("plugin", ""),
        ("table", "cannot read the table"),
        ("reports", "cannot write reports"),
        ("script", "cannot read the script"),
    ],
)
def test_a_script_for_all_users_names_no_path_that_they_cannot_read(tmp_path, store, library, public, closed, said):
    """A plugin of the writer alone is copied beside the tables, also where an earlier copy is closed to others."""
    plugin = library
    if closed == "plugin":
        plugin = Path(shutil.copy(library, public / "closed"))
        plugin.chmod(0o700)
        place_plugin(public / "tables", plugin).parent.chmod(0o700)
    tables = public / ("closed" if closed == "table" else "tables")
    if closed == "reports":
        (public / "reports").chmod(0o755)
    script = (public / "closed" if closed == "script" else public) / "prolog.sh"
    words = ["--all-users", "--policy-dir", tables, "--report", public / "reports", "--output", script]
    done = written(tmp_path, "--storage", store.url, *map(str, words), NCCLT_PLUGIN=plugin)

    assert (done.returncode, said in done.stderr, script.exists()) == (2 if said else 0, True, not said), done
    if said:
        assert "hint: chmod" in done.stderr
    else:
        (copy,) = (public / "tables").glob(f"*/{LIBRARY_NAME}")
        assert (copy.stat().st_mode & 0o004, copy.parent.stat().st_mode & 0o005) == (0o004, 0o005)
        assert f"NCCL_TUNER_PLUGIN={copy}" in script.read_text()
        assert [line for line in script.read_text().splitlines() if "SLURM_JOB_UID" in line] == []


def srun(environment, prolog, folder, *, model="bert", code=RANK):
    clean = {name: value for name, value in environment.items() if not name.startswith("NCCL")}
    return run_program(
        ["srun", "-N2", "--ntasks-per-node=4", f"--task-prolog={prolog}", sys.executable, "-c", code],
        env=clean | {"NCCLT_MODEL": model},
        cwd=folder,
    )


def test_a_real_slurm_starts_tasks_with_the_table_or_not_at_all(slurm_cluster, prolog, tmp_path):
    """Eight tasks use the table and report; another workload's get nothing; without table or script none starts."""
    with slurm_cluster.allocation() as environment:
        show = "import os; print([name for name in os.environ if name.startswith('NCCL')], flush=True)"
        other = srun(environment, prolog, tmp_path, model="gpt", code=show)
        assert (other.returncode, other.stdout.splitlines()) == (0, ["['NCCLT_MODEL']"] * 8), other
        done = srun(environment, prolog, tmp_path)
        assert (done.returncode, done.stdout.split()) == (0, ["ran"] * 8), done
        (reports,) = (tmp_path / "re ports").iterdir()
        heads = [json.loads(path.read_text().splitlines()[0]) for path in reports.iterdir()]
        assert sorted(head["launch_rank"] for head in heads) == list(range(8))
        assert {(head["table"], head["not_in_use"]) for head in heads} == {("0c0ffee1", "")}
        attested = run_program(
            [*run_job.NCCLT, "attest", *reports.iterdir(), "--storage", f"sqlite:///{tmp_path}/ncclt.db"],
            env=run_job.job_environ(tmp_path),
        )
        assert (attested.returncode, "took effect" in attested.stdout) == (0, True), attested
        (table,) = (tmp_path / "tables").glob("*.csv")
        for gone in (table, prolog):
            gone.unlink()
            refused = srun(environment, prolog, tmp_path)
            assert refused.returncode != 0
            assert "ran" not in refused.stdout.split(), refused
        assert list((tmp_path / "re ports").iterdir()) == [reports]
