"""Where the ranks meet: at the host that ssh connects to, as it says itself; its place is taken by a script."""

import pytest

from ncclt.launch.launcher import JobShape
from ncclt.launch.ssh.launcher import SshLauncher

SSH = """#!/bin/sh
echo "$*" >"{asked}"
{says}
"""


@pytest.mark.parametrize(
    ("says", "address"),
    [
        ("printf 'host first\\nuser me\\nhostname 10.0.0.7\\nport 22\\n'", "10.0.0.7"),
        ("echo 'Bad configuration option: hostname x' >&2; exit 255", "first"),
        (None, "first"),  # no ssh: the plan is shown all the same
    ],
)
def test_ranks_meet_at_the_name_behind_an_alias(tmp_path, says, address):
    if says is not None:
        (tmp_path / "ssh").write_text(SSH.format(asked=tmp_path / "asked", says=says))
        (tmp_path / "ssh").chmod(0o755)
    shape = JobShape(nodes=2, hosts=("me@first:2222", "second"))
    launcher = SshLauncher.create(
        shape=shape, options={"ssh_arg": ("-F", "config")}, environment={"PATH": str(tmp_path)}
    )
    if says is not None:
        assert (tmp_path / "asked").read_text() == "-F config -G first\n"
    plan = launcher.plan(("prog",), variables={}, timeout_s=1.0)
    assert f" --master-addr {address} " in dict(plan.files)["node.sh"]
