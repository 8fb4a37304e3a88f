"""`ncclt profile import` says how to go on in a line that a shell takes as it stands."""

from typer.testing import CliRunner

from ncclt.cli.profile import app

TABLE = "collective,size_bytes,calls,dtype\nall_reduce,4194304,3,float32\n"


def test_the_next_command_is_quoted_for_a_shell(tmp_path):
    (tmp_path / "calls.csv").write_text(TABLE)
    storage = f"sqlite:///{tmp_path / 'store.db'}"

    words = ("import", str(tmp_path / "calls.csv"), "--name", "my job", "--storage", storage)
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)

    assert done.exit_code == 0
    assert done.stderr.endswith("; tune it with: ncclt tune --model 'my job'\n")
