"""Handing variables on to the ranks."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from ncclt.launch.mpi import forward_variables, is_open_mpi


def test_only_open_mpi_needs_help():
    argv = ("torchrun", "--nproc-per-node=2", "train.py")
    assert forward_variables(argv, ["A"], environ={}, open_mpi=False) == (argv, {})


def test_open_mpi_is_told_names_for_each_of_its_programs():
    argv = ("mpirun", "-n", "1", "a", ":", "-n", "2", "b")
    words = ("mpirun", "-x", "A", "-x", "B", "-n", "1", "a", ":", "-x", "A", "-x", "B", "-n", "2", "b")
    assert forward_variables(argv, ["A", "B"], environ={}, open_mpi=True) == (words, {})


def test_a_list_in_the_command_is_extended_for_x_may_not_stand_beside_it():
    argv = ("mpirun", "--mca", "mca_base_env_list", "MINE", "a")
    assert forward_variables(argv, ["A", "B"], environ={}, open_mpi=True) == (
        ("mpirun", "--mca", "mca_base_env_list", "MINE;A;B", "a"),
        {},
    )


def test_a_list_in_the_environment_is_extended():
    environ = {"OMPI_MCA_mca_base_env_list": "MINE"}
    argv = ("mpirun", "a")
    assert forward_variables(argv, ["A"], environ=environ, open_mpi=True) == (
        argv,
        {"OMPI_MCA_mca_base_env_list": "MINE;A"},
    )


@given(
    st.lists(st.text().filter(lambda word: word != "mca_base_env_list"), max_size=6),
    st.lists(st.sampled_from(["PYTHONPATH", "NCCL_DEBUG"]), unique=True),
)
def test_the_users_words_all_stay_in_order(words, names):
    argv, _env = forward_variables(("mpirun", *words), names, environ={}, open_mpi=True)
    remaining = iter(argv)
    assert all(word in remaining for word in ("mpirun", *words))


def test_launcher_is_told_by_its_version_and_not_by_its_name(tmp_path):
    for name, version, expected in (
        ("mpirun", "mpirun (Open MPI) 4.1.4", True),
        ("mpiexec", "HYDRA build details:", False),
        ("torchrun", "Open MPI", False),
    ):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nprint({version!r})\n")
        program.chmod(0o755)
        assert is_open_mpi(str(program), environ={}) is expected
    assert not is_open_mpi(str(tmp_path / "orterun"), environ={})
