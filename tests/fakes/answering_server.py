"""A server on loopback that answers as the test says, and an honest answer for it to give."""

import json
import runpy
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

_document = runpy.run_path(str(Path(__file__).with_name("hostile_server.py")))["document"]
SENT = json.dumps(_document(variables={"NCCL_ALGO": "allreduce:tree;allgather:ring"}))
GOOD = (
    "export NCCL_ALGO='allreduce:tree;allgather:ring'\nexport NCCLT_RECOMMENDATION=r-1\n"
    "# ncclt r-1: bert on leonardo 2x4, NCCL 2.28.9: tuned, 1.08x\n"
)
PROBLEM = {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "nothing\nfits", "hint": "run tune"}


@contextmanager
def serving(answer):
    """Serve `answer(handler)` on loopback; yields the address and the requests seen."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(SimpleNamespace(path=self.path, headers=dict(self.headers)))
            answer(self)

        def do_POST(self):
            length = int(self.headers["Content-Length"])
            seen.append(
                SimpleNamespace(path=self.path, headers=dict(self.headers), body=json.loads(self.rfile.read(length)))
            )
            answer(self)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", seen=seen)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reply(status=200, body=SENT, kind="application/json", **headers):
    """Return an answer of fixed status, body and headers."""

    def answer(handler):
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        sent = body.encode() if isinstance(body, str) else body
        for name, value in {"Content_Length": len(sent), **headers}.items():
            handler.send_header(name.replace("_", "-"), str(value))
        handler.end_headers()
        handler.wfile.write(sent)

    return answer
