"""`ncclt profile import`: the names it takes, as every command and the service do, and the next command."""

import pytest
from typer.testing import CliRunner

from ncclt.cli.profile import app
from ncclt.core.name import check_name
from ncclt.errors import UsageError

TABLE = "collective,size_bytes,calls,dtype\nall_reduce,4194304,3,float32\n"


def test_the_next_command_can_be_copied(tmp_path):
    (tmp_path / "calls.csv").write_text(TABLE)
    storage = f"sqlite:///{tmp_path / 'store.db'}"

    words = ("import", str(tmp_path / "calls.csv"), "--name", "my-job.2_b")
    done = CliRunner(env={"NCCLT_STORAGE": storage}).invoke(app, list(words), catch_exceptions=False)

    assert done.exit_code == 0
    assert "next: `ncclt tune --model my-job.2_b` where the job runs" in done.stdout
    assert "advise" not in done.stdout, "nothing is known of its step"


BAD_NAMES = ("", " ", "my job", "../x", "a/b", "-x", "a\n", "a\u202eb", "größe", "x" * 201)


@pytest.mark.parametrize(
    "words",
    [("import", "calls.csv", "--name"), ("model", "resnet50", "--store"), ("record", "--name")],
    ids=lambda words: words[0],
)
def test_a_new_workload_has_the_name_that_uploads_take(tmp_path, subtests, words):
    command = ("--", "true") if words[0] == "record" else ()
    store = tmp_path / "store.db"
    for name in BAD_NAMES:
        with subtests.test(name=name):
            asked = [*words[:-1], f"{words[-1]}={name}", *command]
            done = CliRunner(env={"NCCLT_STORAGE": f"sqlite:///{store}"}).invoke(app, asked)
            assert isinstance(done.exception, UsageError)
            assert done.exception.message == f"{words[-1]} {name!r} cannot name a workload"
            assert not store.exists()


def test_names_of_jobs_and_shipped_workloads_are_allowed():
    for name in ("bert", "vit-l-32", "nasnetmobile-unfused", "train-0f3a", "7b.fsdp_2", "x" * 200):
        assert check_name(name, "--name") == name
