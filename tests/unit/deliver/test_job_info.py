"""Which job a process belongs to, and whether it is the only one that decides for it."""

import pytest

from ncclt.deliver.job_info import (
    decides_alone,
    detect_fabrics,
    detect_gpus,
    is_node_launcher,
    is_other_gpu,
    name_job,
    read_job,
    read_participant,
    starts_other_nodes,
)
from ncclt.errors import UsageError

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
TRAIN = ("python", "train.py")
TORCHRUN = ("torchrun", "--nnodes=2", "train.py")


def name_of(environ, argv=TRAIN, **options):
    return name_job(environ, argv, **options)[0] or None


def test_a_step_of_another_cluster_with_the_same_number_is_another_job():
    """Two clusters may share the file system in which decisions lie."""
    assert name_of(STEP | {"SLURM_CLUSTER_NAME": "a"}) != name_of(STEP | {"SLURM_CLUSTER_NAME": "b"})


def test_a_step_of_slurm_is_a_job_and_a_requeued_one_another():
    assert name_of(STEP) == "Slurm step 7.0 start 0"
    assert name_of(STEP | {"SLURM_RESTART_COUNT": "1"}) == "Slurm step 7.0 start 1"
    assert name_of(STEP | {"SLURM_STEP_ID": "1"}) != name_of(STEP)


def test_one_step_per_node_is_not_the_job():
    alone = STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
    assert name_of(alone, TORCHRUN) is None
    assert name_of(alone, ("torchrun", "--nnodes", "1:4", "--rdzv-id", "bert-1", "train.py")) == "rendezvous bert-1"
    assert name_of(alone, nodes=2) is None
    assert not decides_alone(alone, TORCHRUN)
    rank = {"RANK": "3", "WORLD_SIZE": "8"}
    assert (name_of(alone | rank), decides_alone(alone | rank, TRAIN)) == (None, False)
    assert name_of(STEP | rank) == "Slurm step 7.0 start 0"
    assert not decides_alone(alone, TRAIN, nodes=2)


def test_who_starts_the_processes_knows_the_job(subtests):
    for environ, expected in [
        ({"OMPI_MCA_ess_base_jobid": "99", "OMPI_COMM_WORLD_RANK": "1"}, ("Open MPI job 99", False)),
        ({"PMIX_NAMESPACE": "prterun-n1-5@1"}, ("PMIx namespace prterun-n1-5@1", False)),
        # The nodes of mpirun have been got from Slurm: their daemons are a step that the first node is no part of.
        (STEP | {"OMPI_MCA_ess_base_jobid": "99"}, ("Open MPI job 99", False)),
        (STEP | {"PMIX_NAMESPACE": "slurm.pmix.7.0"}, ("Slurm step 7.0 start 0", True)),
        (STEP | {"SLURM_HET_SIZE": "2"}, ("", True)),
        (BATCH, ("", True)),
        ({}, ("", True)),
    ]:
        with subtests.test(environ=environ, expected=expected):
            assert name_job(environ, TRAIN) == expected


def test_a_rendezvous_has_a_name(subtests):
    for argv, environ, expected in [
        (("torchrun", "--rdzv_id=x", "t.py"), {}, "rendezvous x"),
        (("python", "-m", "torch.distributed.run", "--rdzv-id", "y", "t.py"), {}, "rendezvous y"),
        (("torchrun", "t.py"), {"PET_RDZV_ID": "z"}, "rendezvous z"),
        (("torchrun", "--rdzv-id", "none", "t.py"), {}, None),
        (("torchrun", "--rdzv-id"), {}, None),
        (("python", "t.py", "--rdzv-id", "mine"), {}, None),
        (("apptainer", "exec", "--nv", "x.sif", "torchrun", "--nnodes=2", "--rdzv-id=x", "t.py"), {}, "rendezvous x"),
        (("bash", "-c", "cd /a; torchrun --nnodes=2 --rdzv-id=x t.py"), {}, "rendezvous x"),
        (("torchrun", "--rdzv-id", "my job", "t.py"), {}, "rendezvous my job"),
        # The shell has not put the number in yet: all jobs would have this name.
        (("bash", "-c", "torchrun --rdzv-id=$SLURM_JOB_ID t.py"), {}, None),
    ]:
        with subtests.test(argv=argv, environ=environ, expected=expected):
            assert name_of(environ, argv) == expected


def test_a_name_by_hand_goes_before_all():
    assert name_of(STEP, named="bert-1") == "named bert-1"


def test_a_name_that_is_none_is_refused(subtests):
    for named in ["", " ", "a\nb", "x" * 201]:
        with subtests.test(named=named), pytest.raises(UsageError):
            name_job({}, TRAIN, named=named)


def test_who_is_alone_needs_no_agreement(subtests):
    for environ, argv, alone in [
        ({}, TRAIN, True),
        (BATCH, TRAIN, True),
        (BATCH, TORCHRUN, False),
        (STEP, ("srun", *TRAIN), True),
        (STEP, TRAIN, False),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, TRAIN, True),
        ({"OMPI_COMM_WORLD_RANK": "0"}, TRAIN, False),
        ({"PMI_RANK": "0"}, TRAIN, False),
        ({}, TORCHRUN, False),
        ({}, ("torchrun", "--nproc-per-node", "8", "t.py"), True),
        ({}, ("torchrun", "--standalone", "--nnodes=2", "t.py"), True),
        ({"PET_NNODES": "1:3"}, ("torchrun", "t.py"), False),
        # Each of these is started on every node, and took its decision alone.
        ({"RANK": "1", "WORLD_SIZE": "16"}, TRAIN, False),
        ({}, ("apptainer", "exec", "--nv", "--bind", "/a", "x.sif", *TORCHRUN), False),
        ({}, ("bash", "-c", "torchrun --nnodes=2 t.py"), False),
        ({}, ("bash", "-c", "torchrun --nnodes=$NODES t.py"), False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("deepspeed", "--no_ssh", "t.py"), False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, TRAIN, True),
        ({}, ("time", "-p", "srun", *TORCHRUN), True),
    ]:
        with subtests.test(environ=environ, argv=argv, alone=alone):
            assert decides_alone(environ, argv) is alone


def test_what_stands_before_a_launcher_may_send_it_elsewhere(subtests):
    for command, here, elsewhere in [
        ("torchrun t.py", True, False),
        ("/opt/bin/python3 -m torch.distributed.run t.py", True, False),
        ("env A=1 B=2 C=3 numactl --cpunodebind 0 /opt/bin/torchrun t.py", True, False),
        ("timeout 2h conda run -n x accelerate launch t.py", True, False),
        ("time srun torchrun t.py", False, True),
        ("numactl -l mpirun torchrun t.py", False, True),
        ("env A=1 nice -n 5 srun python t.py", False, True),
        ("./on_all_nodes torchrun t.py", False, False),
        ("python launch.py torchrun", False, False),
    ]:
        with subtests.test(command=command, here=here, elsewhere=elsewhere):
            assert (is_node_launcher(command.split()), starts_other_nodes(command.split())) == (here, elsewhere)


def test_gpus_are_seen_by_the_kernel_modules_first_and_then_by_nvidia_smi(tmp_path):
    assert detect_gpus({}, root=tmp_path) == ()
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho NVIDIA A100-SXM4-40GB; echo NVIDIA A100-SXM4-40GB\n")
    program.chmod(0o755)
    path = {"PATH": str(program.parent)}
    assert detect_gpus(path, root=tmp_path) == ("NVIDIA A100-SXM4-40GB",)
    for number in "01":
        file = tmp_path / "proc/driver/nvidia/gpus" / number / "information"
        file.parent.mkdir(parents=True)
        file.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n")
    assert detect_gpus(path, root=tmp_path) == ("NVIDIA H100 80GB HBM3",)
    program.write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "other" / "dev").mkdir(parents=True)
    (tmp_path / "other" / "dev" / "kfd").touch()
    assert detect_gpus(path, root=tmp_path / "other") == ("a GPU of unknown model",)


def test_fabrics_are_those_of_the_adapters(tmp_path):
    assert detect_fabrics(root=tmp_path) == ()
    for name, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "InfiniBand"), ("odd", "Unknown")):
        file = tmp_path / "sys/class/infiniband" / name / "ports/1/link_layer"
        file.parent.mkdir(parents=True)
        file.write_text(f"{layer}\n")
    assert detect_fabrics(root=tmp_path) == ("infiniband",)


def test_gpus_differ_only_where_both_names_tell_the_model(subtests):
    for measured, seen, other in [
        ("MI355X", "NVIDIA H100 80GB HBM3", True),
        ("H100", "NVIDIA H100 80GB HBM3", False),
        ("A100-SXM-64GB", "NVIDIA A100-SXM4-40GB", False),
        ("GPU", "NVIDIA H100", False),
        ("H100", "a GPU", False),
    ]:
        with subtests.test(measured=measured, seen=seen, other=other):
            assert is_other_gpu(measured, [seen]) is other


def test_launcher_says_how_many_must_be_seen(subtests):
    for environ, argv, count, is_rank in [
        (STEP | {"SLURM_NODEID": "1"}, TRAIN, 2, False),
        ({}, ("torchrun", "--nnodes=3", "--node-rank=1", "t.py"), 3, False),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, TRAIN, 8, True),
        ({"RANK": "5", "WORLD_SIZE": "8"}, TRAIN, 8, True),
        ({}, TRAIN, 1, False),
    ]:
        with subtests.test(environ=environ, argv=argv, count=count, is_rank=is_rank):
            me = read_participant(read_job(argv, environ))
            assert (me.count, me.is_rank) == (count, is_rank)


def test_two_nodes_of_one_launcher_have_two_names_and_two_ranks_of_a_node_one():
    names = [
        read_participant(read_job(TRAIN, STEP | {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 4)})).name
        for rank in range(8)
    ]
    assert [len(set(names)), names[0] == names[3]] == [2, True]
