"""A server on loopback that attacks its clients: one attack per start, for `run`, `env`, the client and TaskProlog.

    FAKE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "fakes" / "hostile_server.py")))

    @pytest.mark.parametrize("attack", FAKE.OUTAGES)
    def test_...(attack):
        with FAKE.hostile(attack) as server:
            subprocess.run(["ncclt", "run", "--server", server.url, ...])

`HARMLESS` are attacks around an honest text, `OUTAGES` those of which nothing can come, `TEXTS` those by the text
itself, `ATTACKS` all of them. What a job got is judged by `pairs_in` and `all_legal` of hostile_answers.py, which are
here as well. Standard library alone.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_ANSWERS = runpy.run_path(str(Path(__file__).with_name("hostile_answers.py")))
HONEST, PAIR_FORMATS, HOSTILE_PAIRS = (_ANSWERS[name] for name in ("HONEST", "PAIR_FORMATS", "HOSTILE_PAIRS"))
written, document, is_legal, all_legal, is_table, pairs_in, group_options_in = (
    _ANSWERS[name]
    for name in ("written", "document", "is_legal", "all_legal", "is_table", "pairs_in", "group_options_in")
)

_MOST_REQUESTS = 50
_LONGEST_S = 300.0
"""No answer lasts longer, whatever the client does."""


@dataclass(frozen=True)
class Asked:
    """What one request wants: the path, and of `env` the format, the shell and whether to unset."""

    path: str
    format: str = "export"
    shell: str = "bash"
    unset: bool = False

    def honest(self, **more: str) -> str:
        return written(self.format, {**HONEST, **more}, shell=self.shell, unset=self.unset)


@dataclass
class Running:
    """A server that is up: its address, and what was asked so far."""

    url: str
    port: int
    seen: list[str] = field(default_factory=list)


_Attack = Callable[["_Handler", Asked], None]


def _pair(name: str, value: str) -> _Attack:
    def attack(handler: _Handler, asked: Asked) -> None:
        pairs = {**HONEST, name: value}
        handler.reply(written(asked.format, pairs, shell=asked.shell, unset=asked.unset))

    return attack


def _text(change: Callable[[str], str]) -> _Attack:
    return lambda handler, asked: handler.reply(change(asked.honest()))


def _fixed(body: str | bytes, status: int = 200, **headers: str) -> _Attack:
    return lambda handler, asked: handler.reply(body, status, **headers)


def _document(**changed: object) -> _Attack:
    """Attack whoever asks for `json`; the others get the honest text."""

    def attack(handler: _Handler, asked: Asked) -> None:
        handler.reply(json.dumps(document(**changed)) if asked.format == "json" else asked.honest())

    return attack


def _redirect(location: str) -> _Attack:
    return lambda handler, asked: handler.reply("", 302, Location=location.format(port=handler.server.server_port))


def _header(name: str, value: str | bytes) -> _Attack:
    """Send the honest text under a header that is garbage."""

    def attack(handler: _Handler, asked: Asked) -> None:
        body = asked.honest().encode()
        sent = value if isinstance(value, bytes) else value.encode()
        handler.raw(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s: %s\r\n\r\n" % (len(body), name.encode(), sent) + body
        )

    return attack


def _raw(sent: bytes) -> _Attack:
    return lambda handler, asked: handler.raw(sent)


def _drip(head: bytes, piece: bytes, every_s: float) -> _Attack:
    """Send some bytes at once and then a piece for ever: each comes in time for a socket, and the whole never does."""

    def attack(handler: _Handler, asked: Asked) -> None:
        handler.raw(head)
        while not handler.server.ended.wait(every_s):
            handler.raw(piece)

    return attack


_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
_ROW = {
    "collective": "all_reduce",
    "min_bytes": 0,
    "max_bytes": None,
    "group_size": 0,
    "algorithm": "ring",
    "protocol": "simple",
    "channels": 8,
}

OUTAGES: dict[str, _Attack] = {
    "redirect to ftp": _redirect("ftp://127.0.0.1/x"),
    "redirect to a file": _redirect("file:///etc/passwd"),
    "redirect to half an address": _redirect("http://[::1/x"),
    "redirect to an empty label": _redirect("http://a..b/"),
    "redirect to a host of 300 characters": _redirect("http://" + "a" * 300 + "/"),
    "redirect to a label of 70 characters": _redirect("http://" + "a" * 70 + ".example/"),
    "redirect to a host beyond ASCII": _redirect("http://h\u00f6st.\u2603.invalid/"),
    "redirect to a port that is none": _redirect("http://127.0.0.1:99999999/"),
    "redirect to a word": _redirect("http://127.0.0.1:x/"),
    "redirect to nowhere": _redirect(""),
    "redirect to itself for ever": _redirect("http://127.0.0.1:{port}/v1/clusters/leonardo/env?format=export"),
    "a status line of garbage": _raw(b"HTTP/1.1 abc\r\n\r\n"),
    "no HTTP": _raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "it hangs up": _raw(b""),
    "a length that is not a number": _raw(_OK + b"Content-Length: -7\r\n\r\nabc"),
    "chunks of garbage": _raw(_OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
    "chunks of negative length": _raw(_OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n"),
    "a thousand headers": _raw(_OK + b"X: y\r\n" * 1000 + b"\r\n"),
    "a header of 100 kB": _raw(_OK + b"X: " + b"y" * 100_000 + b"\r\n\r\n"),
    "the answer breaks off": _raw(_OK + b"Content-Length: 100\r\n\r\nexport NCCL_BUFFSIZE=8388608\n"),
    "not modified, unasked": _fixed("", 304),
    "HTML": _fixed("<html><script>evil()</script></html>\n"),
    "HTML of a broken proxy": _fixed("<html>Bad Gateway</html>", 502),
    "an empty answer": _fixed(""),
    "no text": _fixed(b"\xff\xfe\x00\x01"),
    "compressed": _fixed(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\x00" * 1000, Content_Encoding="gzip"),
    "brackets a hundred thousand deep": _fixed("[" * 100_000, Content_Type="application/json"),
    "a list": _fixed("[]"),
    "a problem that is a list": _fixed("[]", 500, Content_Type="application/problem+json"),
    "a problem of deep brackets": _fixed("[" * 100_000, 503, Content_Type="application/problem+json"),
    "a problem of wrong types": _fixed(
        '{"detail": {"a": []}, "hint": [1e999]}', 500, Content_Type="application/problem+json"
    ),
    "more than a megabyte": _fixed("#" * (1024 * 1024 + 2) + "\n"),
    "headers that drip": _drip(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.1),
    "a body that drips": _drip(_OK + b"\r\n# ", b"x", 0.1),
    "chunks that drip": _drip(_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n#\r\n", 0.1),
    "headers without end": _drip(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 60_000, 0.01),
    "a body without end": _drip(_OK + b"\r\n", b"# " + b"x" * 60_000 + b"\n", 0.01),
    "trailers without end": _drip(_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 1000, 0.001),
    "continue without end": _drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, 0.001),
    "silence": _drip(b"", b"", 0.1),
}
"""Attacks below the text: whatever the format, nothing can come of it, and the client must end in its time."""

TEXTS: dict[str, _Attack] = {
    **{f"pair {name}={value[:40]!r}": _pair(name, value) for name, value in HOSTILE_PAIRS},
    "sockets beyond NCCL's": lambda handler, asked: handler.reply(
        asked.honest(NCCL_SOCKET_NTHREADS="16", NCCL_NSOCKS_PERTHREAD="64")
    ),
    "a command before": _text(lambda text: "touch /tmp/evil\n" + text),
    "a command behind": _text(lambda text: text + "touch /tmp/evil\n"),
    "a command behind a remark": _text(lambda text: text.replace("# ncclt", "# ncclt\r touch /tmp/evil #", 1)),
    "no end of line": _text(lambda text: text.rstrip("\n")),
    "the same variable twice": _text(lambda text: text + text),
    "another first line": _text(lambda text: text.replace("#!/bin/sh", "#!/bin/sh -c evil", 1)),
    "another interpreter": _text(lambda text: text.replace("#!/bin/sh", "#!/usr/bin/python3", 1)),
    "a remark for a first line": _text(lambda text: "#!/usr/bin/env evil\n" + text),
    "a prolog that fails": _text(lambda text: text.replace("exit 0", "exit 1")),
    "a prolog for any step": _text(lambda text: re.sub(r"(?m)^if .*$", "if true; then", text)),
    "a prolog that prints a command": _text(lambda text: text.replace("'export NCCL_BUFFSIZE=", "'touch NCCL_", 1)),
    "another kind of object": _text(lambda text: text.replace("kind: ConfigMap", "kind: ClusterRoleBinding")),
    "another object's name": _text(lambda text: text.replace("ncclt.bert.leonardo.2x4", "kube-root-ca.crt")),
    "a second object": _text(lambda text: text + "---\napiVersion: v1\nkind: Secret\n"),
    "another name space": _text(lambda text: text.replace("metadata:", "metadata:\n  namespace: kube-system")),
    "a label of its own": _text(lambda text: text.replace("  labels:", '  labels:\n    evil: "yes"')),
    "a field beside the value": _text(lambda text: text.replace('value: "8', 'valueFrom: "8')),
    "another option": _text(lambda text: re.sub(r"(-x|--env) NCCL_ALGO", r"--privileged \1 NCCL_ALGO", text, count=1)),
    "a table's algorithm": _document(table=[{**_ROW, "algorithm": "evil"}]),
    "a table's channels": _document(table=[{**_ROW, "channels": 10**9}]),
    "a table's sizes are text": _document(table=[{**_ROW, "min_bytes": "0", "max_bytes": "x"}]),
    "a table's sizes are endless": _document(table=[{**_ROW, "max_bytes": 10**400}]),
    "a table's group is a fraction": _document(table=[{**_ROW, "group_size": 0.5}]),
    "a table that is text": _document(table="evil"),
    "a table without a field": _document(table=[{}]),
    "a table's parameters are a list": _document(table_parameters=[1]),
    "a table's parameter is text": _document(table_parameters={"BUFFSIZE": "8388608; id"}),
    "a table's parameter is true": _document(table_parameters={"IB_SPLIT_DATA_ON_QPS": True}),
    "a table's parameter is not a parameter": _document(table_parameters={"ALGO": "ring"}),
    "variables are a list": _document(variables=["NCCL_ALGO"]),
    "variables are none": _document(variables=None),
    "a value is a number": _document(variables={"NCCL_BUFFSIZE": 8388608}),
    "a value is a list": _document(variables={"NCCL_BUFFSIZE": ["8388608"]}),
    "nodes are endless": _document(nodes=float("inf")),
    "nodes are text": _document(nodes="two"),
    "nodes are below zero": _document(nodes=-2),
    "nodes are 10**400": _document(nodes=10**400),
    "the origin is text": _document(origin="real"),
    "the origin is a truth value": _document(origin=True),
    "the origin is none": _document(origin=None),
    "the origin is of an older server": _document(origin=None, simulated=False),
    "the origin denies the launcher": _document(launcher="replay"),
    "the model clears the screen": _document(model="\x1b[2J\x1b]0;evil\x07"),
    "the cluster has lines": _document(cluster="a\nexport LD_PRELOAD=/srv/evil.so"),
    "the version is none": _document(nccl_version="latest"),
    "the version is text with lines": _document(nccl_version="2.28.9-\n"),
    "the recommendation is a path": _document(recommendation="../../evil"),
    "the recommendation is text with lines": _document(recommendation="r\nexport A=1"),
    "another schema": _document(schema=99),
    "a table of another revision": _text(lambda text: text.replace("id=r-1 ", "id=r-2 ")),
    "a table's head is garbage": _text(lambda text: text.replace("# ncclt-table 1", "# ncclt-table evil")),
    "a table's row is garbage": _text(lambda text: text.replace("ring,simple,8", "ring,simple,8;id")),
    "a table's row has another algorithm": _text(lambda text: text.replace(",ring,simple", ",evil,simple")),
    "a table's row has endless channels": _text(lambda text: text.replace("simple,8", "simple,99999999999")),
}
"""Attacks by the text, per format: a job gets nothing, or legal pairs only (not every attack fits every format)."""

HARMLESS: dict[str, _Attack] = {
    "none": lambda handler, asked: handler.reply(asked.honest()),
    "an etag beyond latin-1": _header("ETag", '"\u2603"'),
    "an etag of bytes": _header("ETag", b'"\xff\xfe\x01"'),
    "an etag of 60 kB": _header("ETag", '"' + "e" * 60_000 + '"'),
    "a header of no name": _header("", "x"),
    "a header of control characters": _header("X", b"\x01\x02\x1b[2J"),
    "a cookie": _header("Set-Cookie", "evil=1"),
    "a charset that is none": _header("Content-Type", "text/plain; charset=evil"),
}
"""Garbage around an honest text: a job may get all of it."""

ATTACKS: dict[str, _Attack] = {**HARMLESS, **OUTAGES, **TEXTS}


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # they end with the server, or by themselves
    ended: threading.Event
    attack: _Attack
    running: Running

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away, which is what a good one does."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _LONGEST_S

    def do_GET(self) -> None:
        self.server.running.seen.append(self.path)
        if len(self.server.running.seen) > _MOST_REQUESTS:
            return
        query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        asked = Asked(
            path=self.path,
            format=query.get("format", "export"),
            shell=query.get("shell", "bash"),
            unset=query.get("unset") == "true",
        )
        with suppress(OSError):  # the client went away
            self.server.attack(self, asked)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def raw(self, sent: bytes) -> None:
        """Send bytes as they are, and no answer of http.server."""
        self.wfile.write(sent)
        self.wfile.flush()

    def reply(self, body: str | bytes, status: int = 200, **headers: str) -> None:
        """Answer in good form; the text may be anything."""
        sent = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        given = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(sent))}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status} Hostile", *(f"{name}: {value}" for name, value in given.items())]
        self.raw("".join(f"{line}\r\n" for line in [*lines, ""]).encode() + sent)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of the tests clean."""


@contextmanager
def hostile(attack: str) -> Iterator[Running]:
    """Serve one of `ATTACKS` on a port of its own, until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.ended, server.attack = threading.Event(), ATTACKS[attack]
    server.running = Running(url=f"http://127.0.0.1:{server.server_port}", port=server.server_port)
    # A client that never goes away must not hold the test for ever.
    limit = threading.Timer(_LONGEST_S, server.ended.set)
    limit.daemon = True
    limit.start()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.running
    finally:
        server.ended.set()
        limit.cancel()
        server.shutdown()
        thread.join()
        server.server_close()
