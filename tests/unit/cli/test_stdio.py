"""Whatever a shell hands over as stdout, a command ends with a sentence and an exit code, never a traceback."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ncclt
from ncclt.cli.stdio import visible

COMMANDS = [("profile", "list"), ("env", "--help")]
TIMEOUT_S = 120


@pytest.fixture
def environ(tmp_path):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NCCLT_", "XDG_", "PYTHON"))}
    return {**kept, "HOME": str(tmp_path)}


def run(words, environ, **options):
    argv = [sys.executable, "-m", "ncclt", *words]
    return subprocess.run(argv, env=environ, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, **options)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_reader_that_is_gone_is_nothing_to_complain_about(words, environ):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = run(words, environ, stdout=gone)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_disk_is_said_in_one_line(words, environ):
    with Path("/dev/full").open("w") as full:
        done = run(words, environ, stdout=full)
    assert (done.returncode, done.stderr) == (1, "ncclt: stdout cannot be written: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_report_ends_like_any_other_output(environ):
    study = ("--launcher", "replay", "--nodes", "2", "--trials", "1", "--study", "one")
    done = run(("tune", "--model", "bert", *study), environ, stdout=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    with Path("/dev/full").open("w") as full:
        done = run(("report", "one"), environ, stdout=full)
    assert (done.returncode, done.stderr) == (1, "ncclt: stdout cannot be written: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = run(("report", "one"), environ, stdout=gone)
    assert (done.returncode, done.stderr) == (141, "")
    page = subprocess.run(
        [sys.executable, "-m", "ncclt", "report", "one"], env={**environ, **ASCII}, stdout=subprocess.PIPE, check=True
    ).stdout.decode("utf-8")
    assert "\u00b5s" in page


@pytest.mark.parametrize("words", COMMANDS)
def test_a_closed_stdout_is_no_error(words, environ):
    argv = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ncclt", *words]
    done = subprocess.run(argv, env=environ, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PRINTED = [
    ("--help-all",),
    ("landscape", "show", "mi355x-2x8"),
    ("advise", "--model", "bert", "--cluster", "dgx-h100"),
    ("upgrade", "--cluster", "dgx-h100", "--from", "2.27.3", "--to", "2.28.3"),
    ("studies", "show", "x"),
    ("tune", "--model", "bert", "--nodes", "2", "--launcher", "simulate", "--trials", "3", "--blocks", "3"),
]


LATIN_1 = {"PYTHONIOENCODING": "latin-1"}


@pytest.mark.parametrize(
    ("words", "encoding"),
    [*((words, ASCII) for words in PRINTED), (PRINTED[0], LATIN_1), (("landscape", "show", "mi355x-2x8"), LATIN_1)],
    ids=lambda value: " ".join(value),
)
def test_every_command_prints_in_any_encoding(words, encoding, environ):
    done = run(words, {**environ, **encoding}, stdout=subprocess.PIPE, encoding="latin-1")
    assert "UnicodeEncodeError" not in done.stderr
    assert done.returncode == (3 if words[0] == "studies" else 0), done.stderr
    if encoding is ASCII:
        assert (done.stdout + done.stderr).isascii()


def test_whatever_ncclt_itself_prints_has_a_spelling():
    """A box of a docstring is printed by nobody; a list of surrogates is no text."""
    ours = set()
    for path in Path(ncclt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                ours |= {letter for letter in node.value if not letter.isascii() and visible(letter) == letter}
    ours = {letter for letter in ours if not 0xD800 <= ord(letter) <= 0xDFFF}
    spelled = {letter: letter.encode("ascii", "ncclt.spelled").decode() for letter in ours}
    assert {letter: text for letter, text in spelled.items() if "\\" in text} == {}


def test_json_is_whole_in_any_encoding(environ):
    document = {"name": "é µ…", "note": "\x7f"}
    code = "from ncclt.cli.stdio import prepare; from ncclt.cli.render import print_json; prepare(); print_json("
    argv = [sys.executable, "-c", f"{code}{document!a})"]
    for encoding in (ASCII, {"PYTHONIOENCODING": "utf-8"}):
        done = subprocess.run(argv, env={**environ, **encoding}, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True)
        assert json.loads(done.stdout) == document


def test_one_log_of_both_streams_has_their_lines_in_order(environ):
    code = "import sys; from ncclt.cli.stdio import prepare; prepare(); print(1); print(2, file=sys.stderr); print(3)"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(
        argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.split() == [b"1", b"2", b"3"]


def test_a_caller_in_the_same_process_may_listen(environ):
    """With an object of his own in the place of stdout."""
    code = (
        "import contextlib, io, sys\n"
        "from ncclt.cli import main\n"
        "sys.argv = ['ncclt', '--version']\n"
        "heard = io.StringIO()\n"
        "with contextlib.redirect_stdout(heard):\n"
        "    try:\n        main()\n    except SystemExit as end:\n        code = end.code\n"
        "print(code, heard.getvalue().split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.split() == ["0", "ncclt"]
