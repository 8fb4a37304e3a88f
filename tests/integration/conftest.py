"""A private sshd on the loopback interface, for launches by ssh."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from ports import free_port

from ncclt.nccl.tuner_plugin.build import build, compiler

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
START_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Sshd:
    """A running server: two names of this machine, and how to reach them."""

    hosts: tuple[str, str]
    options: tuple[str, ...]


def new_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL)
    return Path(f"{path}.pub").read_text()


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start(folder, port):
    """Start sshd; None where the port has been taken by somebody else meanwhile."""
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nAllowUsers {getpass.getuser()}\nMaxStartups 100\n"
    )
    log = (folder / "log").open("wb")
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdin=subprocess.DEVNULL, stderr=log)
    log.close()
    deadline = time.monotonic() + START_S
    while server.poll() is None and not answers(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    if server.poll() is None and answers(port):
        return server
    server.kill()
    server.wait()
    return None


@pytest.fixture(scope="session")
def sshd(tmp_path_factory):
    """A server with keys of its own, reachable under two names; nothing of this user's ssh is read or changed."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("ssh and sshd are not installed")
    folder = tmp_path_factory.mktemp("sshd")
    host_key = new_key(folder / "host_key")
    (folder / "authorized_keys").write_text(new_key(folder / "key"))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd of root separates its privileges
    for _ in range(5):
        port = free_port()
        if server := start(folder, port):
            break
    else:
        pytest.fail(f"sshd does not start: {(folder / 'log').read_text()}")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port},[localhost]:{port} {host_key}")
    yield Sshd(
        hosts=(f"127.0.0.1:{port}", f"localhost:{port}"),
        options=(
            *("-F", "/dev/null", "-i", str(folder / "key")),
            *("-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={folder / 'known_hosts'}"),
            *("-o", "GlobalKnownHostsFile=/dev/null"),
            *("-o", "LogLevel=ERROR"),
        ),
    )
    server.terminate()
    server.wait(timeout=START_S)


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The compiled tuner plugin."""
    if compiler() is None:
        pytest.skip("no C compiler here: the plugin cannot be built")
    return build(tmp_path_factory.mktemp("plugin") / "libnccl-tuner-ncclt.so")
