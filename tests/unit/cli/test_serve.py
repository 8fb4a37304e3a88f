"""`ncclt serve` says in a sentence that it cannot listen."""

import socket

import pytest

from ncclt.cli.serve import serve
from ncclt.errors import UsageError


def test_a_port_in_use_is_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            serve(port=port, storage=f"sqlite:///{tmp_path / 'store.db'}")


def test_an_address_of_another_machine_is_refused(tmp_path):
    # 192.0.2.0/24 belongs to nobody (RFC 5737).
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        serve(host="192.0.2.1", port=0, storage=f"sqlite:///{tmp_path / 'store.db'}")


@pytest.mark.parametrize("option", ["public_url", "optuna_dashboard_url"])
def test_an_address_that_is_no_web_address_is_refused(option):
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} must be an http or https address, not 'ftp:x'"):
        serve(**{option: "ftp:x"})
