"""Tests of many cases fail with the names of all cases that failed."""

import os

import pytest

from each_case import each_case


def test_every_failed_case_is_named():
    @each_case("number, root", [(4, 2), (9, 2), (16, 5), (25, 5)], ids=["four", "nine", "sixteen", "twenty-five"])
    def check(number, root):
        if number == 16:
            pytest.fail("refused")
        assert root * root == number

    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases failed: nine, sixteen") as caught:
        check()
    assert [error.__notes__ for error in caught.value.exceptions] == [["in the case nine"], ["in the case sixteen"]]


def test_a_skipped_case_fails():
    @each_case("number", [1])
    def check(number):
        pytest.skip("absent")

    with pytest.raises(AssertionError, match="cannot be skipped alone: 0: \\(1,\\)"):
        check()


@each_case("second", [True, False])
@each_case("number", [1, 2])
def test_a_case_has_a_folder_patches_and_output_of_its_own(number, second, tmp_path, monkeypatch, capsys):
    assert list(tmp_path.iterdir()) == []
    assert "NCCLT_CASE" not in os.environ
    assert capsys.readouterr().out == ""
    (tmp_path / "file").touch()
    monkeypatch.setenv("NCCLT_CASE", "1")
    print(number, second)
