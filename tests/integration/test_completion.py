"""Shell completion, in the shells themselves: the script that `ncclt --show-completion` prints is loaded and asked."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from program import run_program

ASK = {
    "bash": """
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _ncclt_completion ncclt; printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    # What completion hands to zsh's own _arguments is printed in its place.
    "zsh": "words=({words}); CURRENT=${{#words}}; _arguments() {{ print -rl -- $@ }}; _ncclt_completion",
    "fish": "complete --do-complete '{words}'",
}
LOAD = {"bash": "source {script}", "zsh": "compdef() {{ }}; source {script}", "fish": "source {script}"}
OPTIONS = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """The environment of a user whose `ncclt` is on the PATH."""
    home = tmp_path_factory.mktemp("home")
    program = home / "bin" / "ncclt"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom ncclt.cli import main\nmain()\n")
    program.chmod(0o755)
    return {
        "HOME": str(home),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }


@pytest.fixture(
    scope="module", params=["bash", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("zsh", "fish"))]
)
def loaded(request, environ):
    """A shell, how it is started, and the script for it."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    script = Path(environ["HOME"]) / f"completion.{request.param}"
    asked = ["ncclt", "--show-completion", request.param]
    script.write_text(run_program(asked, env=environ, check=True).stdout)
    return request.param, [program, *OPTIONS[request.param]], script


def test_the_shell_completes(loaded, environ):
    """The words of a group and the options of its command; those of other groups are not offered."""
    shell, argv, script = loaded
    for words, offered in (("ncclt cluster det", "detect"), ("ncclt cluster show --to", "--toml")):
        text = f"{LOAD[shell].format(script=script)}\n{ASK[shell].format(words=words)}"
        done = run_program([*argv, "-c", text], env=environ)

        assert done.stderr == ""
        assert offered in done.stdout
        assert "landscape" not in done.stdout
