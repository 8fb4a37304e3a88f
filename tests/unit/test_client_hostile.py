"""The client against servers that drip, or nest their answers too deeply."""

import importlib.util
import threading
from pathlib import Path

import pytest

from ncclt.client import ClientError, fetch_recommendation

_spec = importlib.util.spec_from_file_location("client_servers", Path(__file__).with_name("test_client.py"))
servers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(servers)
fetch, reply, serving = servers.fetch, servers.reply, servers.serving


def test_a_server_that_drips_its_headers_is_not_waited_for():
    """Each byte comes in time for the socket, and the whole answer does not."""
    ended = threading.Event()

    def drip(handler):
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + b"X-Long: " + b"x" * 1000 + b"\r\n\r\n":
            if ended.wait(0.1):
                return
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()

    with serving(drip) as server:
        try:
            with pytest.raises(ClientError, match=r"did not answer within 0\.5 s"):
                fetch(server.url, timeout_s=0.5)
        finally:
            ended.set()


@pytest.mark.parametrize("format", ["json", "export"])
def test_an_answer_of_nothing_but_brackets_is_said_to_be_none(format):
    """Python gives up on it by another error than on broken JSON."""
    deep = reply(body="[" * 100_000, kind="application/json")
    with serving(deep) as server:
        with pytest.raises(ClientError, match="not with an environment"):
            fetch(server.url, format=format)
        with pytest.raises(ClientError, match="not as ncclt does"):
            fetch_recommendation(server.url, "r1")
    refusing = reply(500, body="[" * 100_000, kind="application/problem+json")
    with serving(refusing) as server, pytest.raises(ClientError, match="answered 500"):
        fetch(server.url)
