"""The line between controller and rank 0: who is believed, and what happens to everybody else."""

import json
import socket
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.measure.benchmarks.torch_worker import ncclt_torch_connection as connection
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_connection import (
    ConnectionClosedError,
    RankConnection,
    RankConnectionError,
)

TOKEN = b"0123456789abcdef"
PATIENCE_S = 60.0


@contextmanager
def connected():
    """Two ends of one TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


def prove_both(one, other):
    """Return what each end raised."""
    raised = [None, None]

    def prove(number, end):
        try:
            end.prove(PATIENCE_S)
        except RankConnectionError as error:
            raised[number] = error
            end.close()

    threads = [threading.Thread(target=prove, args=pair) for pair in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@contextmanager
def proven():
    with connected() as (near, far):
        ends = RankConnection(near, TOKEN, controls=True), RankConnection(far, TOKEN, controls=False)
        assert prove_both(*ends) == [None, None]
        yield ends


def test_both_ends_hear_each_other():
    with proven() as (controller, rank):
        assert controller.receive(0.0) is None
        for document in ({"a": [1, None, "ü\n"]}, {"long": "x" * 300_000}):
            sender = threading.Thread(target=controller.send, args=(document,))
            sender.start()
            assert rank.receive(PATIENCE_S) == document
            sender.join()
        rank.send({"b": 1})
        rank.send({"b": 2})
        assert [controller.receive(PATIENCE_S), controller.receive(PATIENCE_S)] == [{"b": 1}, {"b": 2}]


def test_an_end_that_closes_is_gone():
    with proven() as (controller, rank):
        rank.close()
        with pytest.raises(ConnectionClosedError):
            controller.receive(PATIENCE_S)


@pytest.mark.parametrize("tokens", [(TOKEN, b"other"), (b"other", TOKEN)])
def test_whoever_has_another_token_is_turned_away(tokens):
    with connected() as (near, far):
        raised = prove_both(
            RankConnection(near, tokens[0], controls=True), RankConnection(far, tokens[1], controls=False)
        )
    assert isinstance(raised[0], RankConnectionError)
    assert isinstance(raised[1], RankConnectionError)
    assert "does not know the token" in str(raised[0])


@pytest.mark.parametrize("controls", [True, False])
def test_an_end_that_throws_back_what_it_hears_proves_nothing(controls):
    with connected() as (near, far):
        stop = threading.Event()

        def mirror():
            far.settimeout(0.05)
            while not stop.is_set():
                try:
                    said = far.recv(65536)
                    if not said:
                        return
                    far.sendall(said)
                except TimeoutError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=mirror)
        thread.start()
        try:
            with pytest.raises(RankConnectionError):
                RankConnection(near, TOKEN, controls=controls).prove(2.0)
        finally:
            stop.set()
            thread.join()


@given(
    garbage=st.one_of(
        st.binary(min_size=1, max_size=200),
        st.just(b"GET / HTTP/1.1\r\n\r\n"),
        st.just(b'{"protocol": 1, "number": "' + b"0" * 64 + b'"}\n{"proof": 5}\n'),
        st.just(b"[" * 4000 + b"\n"),
        st.just(b"null\n"),
        st.just(b"x" * 5000),
    )
)
def test_a_stranger_says_what_he_likes_and_is_turned_away(garbage):
    with connected() as (near, far):
        far.sendall(garbage)
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(RankConnectionError):
            RankConnection(near, TOKEN, controls=True).prove(PATIENCE_S)


def test_a_silent_stranger_is_not_waited_for():
    with connected() as (near, _far), pytest.raises(RankConnectionError, match="says nothing"):
        RankConnection(near, TOKEN, controls=True).prove(0.05)


def test_nobody_makes_us_keep_an_endless_line(monkeypatch):
    monkeypatch.setattr(connection, "MOST_BYTES", 1000)
    with proven() as (controller, rank):
        controller._socket.sendall(b"x" * 1001)
        with pytest.raises(RankConnectionError, match="more than 1000 bytes"):
            rank.receive(PATIENCE_S)


def test_a_line_that_the_other_end_has_not_written_so_is_noticed(subtests):
    cases = ["changed", "again", "left out", "unsigned", "no list", "other way"]
    for tampering in cases:
        with subtests.test(tampering=tampering), proven() as (controller, rank):
            lines = []
            controller._write = lines.append
            for number in (1, 2):
                controller.send({"do": number})
            written = {
                "changed": [[lines[0][0], '{"do":3}']],
                "again": [lines[0], lines[0]],
                "left out": [lines[1]],
                "unsigned": [["", lines[0][1]]],
                "no list": [{"do": 1}],
                "other way": [[rank._line_proof("rank 0", 1, lines[0][1]), lines[0][1]]],
            }[tampering]
            controller._socket.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in written))
            if tampering == "again":
                assert rank.receive(PATIENCE_S) == {"do": 1}
            with pytest.raises(RankConnectionError):
                rank.receive(PATIENCE_S)


def test_a_controller_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(RankConnectionError, match=f"the controller at {address} cannot be reached"):
        connection.connect(address, TOKEN, within_s=PATIENCE_S)
