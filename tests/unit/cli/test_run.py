"""`ncclt run`: what fails beside the training does not stop it."""

import argparse
import errno

import pytest

from ncclt.cli import run_prepare
from ncclt.errors import InputError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_full_disk_costs_the_reports_and_not_the_training(tmp_path, monkeypatch, capsys, number):
    def refused(**_options):
        raise OSError(number, "no")

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    assert run_prepare._report_folder(argparse.Namespace(report=tmp_path, fallback="cached")) is None
    assert "reports skipped" in capsys.readouterr().err
    with pytest.raises(InputError, match="cannot write to"):
        run_prepare._report_folder(argparse.Namespace(report=tmp_path, fallback="fail"))
