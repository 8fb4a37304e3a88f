"""`ncclt profile import`: the names it takes, as every command and the service do, and the next command."""

import json

import pytest
from typer.testing import CliRunner

from ncclt.cli.profile import app, print_profile
from ncclt.core.message import Collective, Message
from ncclt.core.name import check_name
from ncclt.core.workload import MessageCalls, Provenance, Workload
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


def imported(tmp_path, *words):
    """Import calls of groups of 8 ranks in both placements, and of 2; return the messages by group."""
    (tmp_path / "calls.csv").write_text(
        "collective,size_bytes,calls,dtype,group_size,spans_nodes\n"
        "all_gather,4194304,3,float32,8,0\nall_reduce,4194304,2,float32,8,1\nall_reduce,64,1,float32,2,0\n"
    )
    asked = ["import", str(tmp_path / "calls.csv"), "--name", "mine", "--dry-run", "--json", *words]
    done = CliRunner(env={"NCCLT_STORAGE": f"sqlite:///{tmp_path / 'store.db'}"}).invoke(app, asked)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)["messages"]


def test_the_messages_of_one_group_alone_can_be_imported(tmp_path, subtests):
    for group, wanted in (
        ("2", [("all_reduce", 2)]),
        ("8:inside", [("all_gather", 8)]),
        ("8:across", [("all_reduce", 8)]),
    ):
        with subtests.test(group=group):
            kept = imported(tmp_path, "--group", group)
            assert [(row["collective"], row["group_size"]) for row in kept] == wanted


def test_the_bound_of_a_group_is_shown_as_tune_uses_it(capsys):
    message = Message(collective=Collective.ALL_REDUCE, dtype="int8", size_bytes=64, group_size=2)
    calls = (MessageCalls(message=message, calls_per_step=1.0, recorded_us=70.0),)
    job = Workload(name="w", provenance=Provenance(source="x"), messages=calls, step_time_us=100.0, exposed_us=60.0)
    print_profile(job.of_group(2), limit=1)
    assert "Exposed communication: unknown, at most 70.0 % of a step" in capsys.readouterr().out


def test_a_group_that_is_none_or_two_is_refused_with_those_that_are_there(tmp_path, subtests):
    for group, said, hint in (
        ("8", "inside a node and across nodes", "8:inside or 8:across"),
        ("4", "no message in groups of 4 ranks", "2 ranks inside a node; 8 ranks inside a node; 8 ranks across nodes"),
        ("tp", "--group is 'tp'", "8:inside"),
        ("8:far", "--group is '8:far'", "8:inside"),
    ):
        with subtests.test(group=group):
            with pytest.raises(UsageError, match=said) as caught:
                imported(tmp_path, "--group", group)
            assert hint in caught.value.hint


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
