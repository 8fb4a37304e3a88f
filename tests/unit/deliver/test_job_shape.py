"""What a job's command and its launcher's variables say of its nodes, GPUs per node and NCCL."""

import pytest

from ncclt.deliver.job_info import find_nccl_version, read_shape

TRAIN = "python train.py -n 9 -N 9"
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8"}
STEP = {**ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}
TORCH_RANK = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}


def test_the_shape_is_what_stands_nearest_to_the_ranks(subtests):
    for command, environ, nodes, gpus in [
        (TRAIN, {}, None, None),
        # torchrun: it is 1 where it is not told; what a shell puts in later, ranges and `gpu` are not known.
        ("torchrun --nnodes=2 --nproc-per-node=8 train.py", {}, 2, 8),
        ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 train.py", {}, 2, 8),
        ("torchrun --standalone --nproc-per-node 4 train.py", ALLOCATION, 1, 4),
        ("torchrun --nproc-per-node=8 train.py", ALLOCATION, 1, 8),
        ("torchrun train.py", {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8"}, 2, 8),
        ("torchrun --nnodes=1:4 --nproc-per-node=gpu train.py", {}, None, None),
        ("sh -c torchrun\\ --nproc-per-node=$GPUS\\ train.py", {}, None, None),
        ("srun -N2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=8 train.py", ALLOCATION, 2, 8),
        # mpirun: as it spreads its ranks; one rank per node may start others.
        (f"mpirun -np 16 -N 8 {TRAIN}", {}, 2, 8),
        (f"mpirun --mca btl self,tcp -np 16 --map-by ppr:8:node:PE=4 -x A {TRAIN}", {}, 2, 8),
        (f"mpiexec.hydra -genv A B -n 16 -ppn 8 {TRAIN}", {}, 2, 8),
        (f"mpirun -np 16 {TRAIN}", {}, None, None),
        (f"mpirun -np 16 {TRAIN}", ALLOCATION, 2, 8),
        (f"mpirun -np 8 {TRAIN}", ALLOCATION, None, None),
        (f"mpirun -np 2 -N 1 ./{TRAIN}", {}, 2, None),
        ("mpirun -np 8 a : -np 8 b", {}, None, None),
        # srun: all nodes of its allocation unless it is told otherwise.
        (f"srun -N4 --ntasks-per-node=8 {TRAIN}", ALLOCATION, 4, 8),
        (f"srun --ntasks-per-node=4 {TRAIN}", ALLOCATION, 2, 4),
        (f"srun -n 8 {TRAIN}", ALLOCATION, 2, 4),
        (f"srun {TRAIN}", ALLOCATION, 2, 8),
        # Variables: of ranks, of a step, of an allocation.
        (TRAIN, TORCH_RANK, 2, 8),
        (TRAIN, {"RANK": "0", "WORLD_SIZE": "16"}, None, None),
        (TRAIN, OPEN_MPI, 2, 8),
        (TRAIN, {"PMI_RANK": "0", "PMI_SIZE": "16", "MPI_LOCALNRANKS": "8"}, 2, 8),
        (TRAIN, STEP, 2, 8),
        (TRAIN, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 2, None),
        (TRAIN, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, 2, 8),
        (TRAIN, {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "8"}, None, 8),
        (TRAIN, {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NUM_NODES": "1"}, 1, 8),
        ("", ALLOCATION, 2, 8),
        ("", {"SLURM_NNODES": "2", "SLURM_GPUS_PER_NODE": "a100:4"}, 2, 4),
        ("", {**ALLOCATION, "SLURM_HET_SIZE": "2"}, None, None),
    ]:
        with subtests.test(command=command, environ=environ, nodes=nodes, gpus=gpus):
            found = read_shape(command.replace("\\ ", "\0").replace(" ", "\n").replace("\0", " ").split("\n"), environ)
            known = {part: said.value for part, said in found.items()}
            assert (known.get("nodes"), known.get("gpus_per_node")) == (nodes, gpus)
            assert "ranks" not in known


def test_with_ranks_one_of_nodes_and_gpus_gives_the_other():
    command = ["mpirun", "-np", "16", "./train"]
    assert read_shape(command, {}, nodes=2)["gpus_per_node"].value == 8
    assert read_shape(command, {}, gpus_per_node=4)["nodes"].value == 4
    assert "gpus_per_node" not in read_shape(command, {}, nodes=3)


def test_an_allocation_binds_nobody_and_a_command_does():
    """A job may use half of its allocation; what torchrun is told is what will run."""
    assert not any(said.binding for said in read_shape([], ALLOCATION).values())
    assert all(said.binding for said in read_shape([], STEP).values())
    assert all(
        said.binding for said in read_shape(["torchrun", "--nnodes=2", "--nproc-per-node=8", "t.py"], {}).values()
    )


@pytest.fixture
def environment(tmp_path):
    """A Python environment with a package of NCCL, and the variables under which it is found."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "torchrun"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir(parents=True)
    return packages, {"PATH": f"/nowhere:{tmp_path}/bin"}


def test_nccl_is_that_of_the_python_environment_then_that_of_the_image(environment, tmp_path):
    packages, environ = environment
    image = {"NCCL_VERSION": "2.21.5-1+cuda12.4"}

    def version(command, **more):
        said = find_nccl_version(command.split(), {**environ, **more})
        return said and said.value

    assert version("") == version("torchrun t.py") == version("srun python t.py", **image) == "2.27.3"
    assert version(f"{tmp_path}/bin/python t.py", PATH="/nowhere") == "2.27.3"
    for elsewhere in ("srun --container-image=x python t.py", "apptainer exec x python t.py", "bash job.sh", "ssh h p"):
        assert version(elsewhere, **image) is None
    assert version("", LD_PRELOAD="/opt/libnccl.so.2") is None
    (tmp_path / "libnccl.so.2").touch()
    assert version("", LD_LIBRARY_PATH=f"/nowhere:{tmp_path}") is None
    (packages / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
    assert version("", **image) is None, "which of the two is loaded is not known"
    for folder in packages.iterdir():
        folder.rmdir()
    assert version("", **image) == "2.21.5"
    assert version("") is version("", NCCL_VERSION="latest") is None
