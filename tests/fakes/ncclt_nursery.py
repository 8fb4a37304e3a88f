"""Starts `ncclt` again and again from one process that has imported it: a fork in the place of an interpreter.

Arguments are a command of ncclt; what it imports late is imported here at once, and nothing else of it stays.
One line of JSON for each start on stdin, [words, environment, folder]; its process id on stdout, and when it is over
[exit code, stdout, stderr]. What hangs is ended by SIGALRM.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import threading

import ncclt.cli.run_prepare
import ncclt.client.fetch  # noqa: F401  as the line above: loaded once for all
from ncclt.cli import main

LONGEST_S = 600


def start(words, environ, folder, out, err):
    """Become `ncclt` in a process of its own."""
    signal.alarm(LONGEST_S)  # stays with what the process becomes
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.argv = ["ncclt", *words]
    if "KNOWN_TIMES" in environ:
        importlib.import_module("known_times").install()
    main()


def leave(code):
    """End as an interpreter does, but free no modules: that copies all that was imported, half the time of a start."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def import_as(words):
    """Import what a command imports. It runs in a process of its own: here it would leave more, such as caches."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as found:
        child = os.fork()
        if child == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            with contextlib.suppress(SystemExit):
                start(words, {**os.environ, "HOME": folder}, folder, null, null)
            found.write("\n".join(sys.modules))
            found.flush()
            os._exit(0)
        os.waitpid(child, 0)
        found.seek(0)
        for name in found.read().splitlines():
            with contextlib.suppress(ImportError):  # some are not imported by their names
                importlib.import_module(name)


if sys.argv[1:]:
    import_as(sys.argv[1:])
gc.collect()
gc.set_threshold(20_000, 10, 10)
gc.freeze()  # else a collection in a start scans, and so copies, all that was imported
print("ready", flush=True)
for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            try:
                start(*json.loads(line), out.fileno(), err.fileno())
            except SystemExit as end:
                leave(end.code)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="surrogateescape"))
    print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)
