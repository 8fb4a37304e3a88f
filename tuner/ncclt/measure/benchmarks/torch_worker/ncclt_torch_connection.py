"""The connection between the controller and rank 0: one JSON document per line, each authenticated.

Both ends know a token that was made for this launch. They prove that to each other before anything else is sent
(HMAC-SHA256 over a nonce of each end), and every later line carries a MAC over its direction, its number and its text:
injected, repeated and missing lines are detected. Nothing is encrypted. Shipped beside `ncclt_torch_worker.py` and used
by both ends; like that it needs only Python 3.9.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import time
from typing import Any

PROTOCOL = 1  # version; must be the same at both ends
MOST_BYTES = 64 * 1024 * 1024  # of a line: some 2 KiB per message
MOST_BYTES_BEFORE_PROOF = 4096
SEND_S = 30.0  # an end that does not read for this long is considered dead

_CHUNK_BYTES = 65536


class RankConnectionError(Exception):
    """The other end has gone away, is not authentic, or sent something unreadable."""


class ConnectionClosedError(RankConnectionError):
    """The other end has closed the connection, ended, or does not read."""


class RankConnection:
    """One end of the line.

    Args:
        connection: connected; closed by `close`.
        token: known only to both ends.
        controls: this is the controller's end.
    """

    def __init__(self, connection: socket.socket, token: bytes, *, controls: bool) -> None:
        self._socket, self._token = connection, token
        self._me, self._other = ("controller", "rank 0") if controls else ("rank 0", "controller")
        self._key, self._sent, self._received = b"", 0, 0
        self._buffer = bytearray()
        # The system notices during silence that the other host is down: after 10 + 6 x 5 s.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 6, socket.TCP_NODELAY: 1}
        for option, value in options.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def prove(self, within_s: float) -> None:
        """Prove to the other end that this one knows the token, and check its proof.

        Raises:
            RankConnectionError: the other end does not know it, is of another release, or too slow.
        """
        deadline_s = time.monotonic() + within_s
        nonce = secrets.token_hex(32)
        self._write({"protocol": PROTOCOL, "number": nonce})
        answer = self._before_proof(deadline_s)
        peer_nonce = answer.get("number")
        if answer.get("protocol") != PROTOCOL or not isinstance(peer_nonce, str) or len(peer_nonce) != len(nonce):
            raise RankConnectionError("the other end is of another release of ncclt, or no part of it")
        numbers = (nonce, peer_nonce) if self._me == "controller" else (peer_nonce, nonce)
        if self._me == "rank 0":
            self._write({"proof": self._proof(self._me, *numbers)})
        proof = self._before_proof(deadline_s).get("proof")
        expected = self._proof(self._other, *numbers)
        if not isinstance(proof, str) or not hmac.compare_digest(proof.encode(), expected.encode()):
            raise RankConnectionError("the other end does not know the token of this launch")
        if self._me == "controller":
            self._write({"proof": self._proof(self._me, *numbers)})
        self._key = bytes.fromhex(self._proof("every line", *numbers))

    def send(self, document: Any) -> None:
        """Send a document.

        Raises:
            ConnectionClosedError: the other end has gone away.
        """
        text = json.dumps(document, separators=(",", ":"))
        self._sent += 1
        self._write([self._line_proof(self._me, self._sent, text), text])

    def receive(self, within_s: float) -> Any:
        """Return the next document of the other end; None = nothing yet.

        Raises:
            ConnectionClosedError: the other end has gone away.
            RankConnectionError: the line was not written by it.
        """
        line = self._line(time.monotonic() + within_s, MOST_BYTES)
        if line is None:
            return None
        document = _parse(line)
        if not (isinstance(document, list) and len(document) == 2 and all(isinstance(word, str) for word in document)):
            raise RankConnectionError("a line that is none of ours")
        self._received += 1
        expected = self._line_proof(self._other, self._received, document[1])
        if not hmac.compare_digest(document[0].encode(), expected.encode()):
            raise RankConnectionError("a line that the other end has not written")
        return _parse(document[1].encode())

    def close(self) -> None:
        """Close the connection; the other end notices."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _before_proof(self, deadline_s: float) -> Any:
        line = self._line(deadline_s, MOST_BYTES_BEFORE_PROOF)
        if line is None:
            raise RankConnectionError("the other end says nothing")
        document = _parse(line)
        if not isinstance(document, dict):
            raise RankConnectionError("the other end is not part of ncclt")
        return document

    def _write(self, document: Any) -> None:
        try:
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(document, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ConnectionClosedError(f"the other end is gone: {error}") from error

    def _line(self, deadline_s: float, most_bytes: int) -> bytes | None:
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if max(end, len(self._buffer) if end < 0 else 0) > most_bytes:
                raise RankConnectionError(f"a line of more than {most_bytes} bytes")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            searched = len(self._buffer)
            try:
                self._socket.settimeout(max(1e-3, deadline_s - time.monotonic()))
                chunk = self._socket.recv(_CHUNK_BYTES)
            except socket.timeout:  # noqa: UP041  in Python 3.9 it is no TimeoutError
                return None
            except OSError as error:
                raise ConnectionClosedError(f"the other end is gone: {error}") from error
            if not chunk:
                raise ConnectionClosedError("the other end has closed the connection")
            self._buffer += chunk

    def _proof(self, side: str, controllers: str, workers: str) -> str:
        text = f"ncclt {PROTOCOL}|{side}|{controllers}|{workers}"
        return hmac.new(self._token, text.encode(), hashlib.sha256).hexdigest()

    def _line_proof(self, side: str, number: int, text: str) -> str:
        return hmac.new(self._key, f"{side}|{number}|{text}".encode(), hashlib.sha256).hexdigest()


def connect(address: str, token: bytes, *, within_s: float) -> RankConnection:
    """Return rank 0's end, authenticated.

    Args:
        address: `host:port` of the controller.
        token: of the launch.
        within_s: for connecting and proving.

    Raises:
        RankConnectionError: the controller cannot be reached, or is not authentic.
    """
    host, _, port = address.rpartition(":")
    try:
        connected = socket.create_connection((host.strip("[]"), int(port)), timeout=within_s)
    except (OSError, ValueError) as error:
        raise RankConnectionError(f"the controller at {address} cannot be reached: {error}") from error
    connection = RankConnection(connected, token, controls=False)
    try:
        connection.prove(within_s)
    except RankConnectionError:
        connection.close()
        raise
    return connection


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RankConnectionError("a line that is not JSON") from error
