"""Starts `ncclt` again and again from one process that has imported it: a fork in the place of an interpreter.

One line of JSON for each start on stdin, [words, environment, folder]; one on stdout when it is over,
[exit code, stdout, stderr]. What hangs is ended by SIGALRM.
"""

import json
import os
import signal
import sys
import tempfile

import ncclt.cli.run_prepare
import ncclt.client  # noqa: F401  as the line above: loaded once for all
from ncclt.cli import main

LONGEST_S = 60


def start(words, environ, folder, out, err):
    """Become `ncclt` in a process of its own."""
    signal.alarm(LONGEST_S)  # stays with what the process becomes
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    sys.argv = ["ncclt", *words]
    main()


print("ready", flush=True)
for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            start(*json.loads(line), out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="surrogateescape"))
    print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)
