"""Loads ncclt once and forks a tuner for each line `WORD ARGUMENTS`; prints its process id, then how it ended.

The word goes into the tuner's environment, and so into that of all that it launches. To load everything, also what is
imported late, a small study is simulated first.
"""

import contextlib
import io
import os
import sys
import traceback

from ncclt.cli import main


def load():
    sys.argv = [
        "ncclt", "tune", "--model", "nasnetmobile", "--cluster", "dgx-a100", "--launcher", "simulate", "--trials", "2",
        "--quiet", "--storage", "sqlite:///loading.db",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()


def become_tuner(word, argv):
    os.environ["NCCLT_TEST_WORD"] = word
    log = os.open("tuner.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    sys.argv = ["ncclt", *argv]
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  whatever it is, the test shows it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


load()
print("ready", flush=True)
for line in sys.stdin:
    first, *arguments = line.split()
    child = os.fork()
    if not child:
        become_tuner(first, arguments)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
