"""A PostgreSQL of pgserver: its start, which pgserver itself gives ten seconds, and databases of tests."""

import re
import subprocess
import time
import uuid

import psycopg

WITHIN_S = 240.0


def begin(server):
    """Start a server that does not run, and return when it answers: on a busy machine it may take a minute to begin."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        try:
            server.start()
            psycopg.connect(server.get_uri()).close()
            return
        # The second is pgserver's about a file that is being written, the others are of what begins but is not ready.
        except (subprocess.SubprocessError, AssertionError, OSError, psycopg.OperationalError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


def new_database(server):
    """Create a database and return its URL."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return re.sub(r"/postgres\?", f"/{name}?", server.get_uri())
