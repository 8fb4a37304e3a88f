"""Ranks that command lines start."""

from ncclt.nccl.run_facts import count_ranks


def test_ranks_of_command_lines(subtests):
    """Values of options may look like programs, and torchrun under another launcher starts ranks of its own."""
    cases = [
        ("mpirun --hostfile /etc/hosts -np 16 ./all_reduce_perf", 16),
        ("mpirun -x LD_LIBRARY_PATH=/opt/lib -np 8 ./all_reduce_perf -g 2", 16),
        ("mpirun --mca btl_base_path /opt/mpi -np 8 ./all_reduce_perf -t 2", 16),
        ("mpirun --prefix /opt/mpi -np 8 ./all_reduce_perf", 8),
        ("mpirun $(ncclt env --model m --format mpirun-x) -np 16 ./all_reduce_perf", 16),
        ("srun --chdir /tmp -n 4 ./all_reduce_perf -n 20", 4),
        ("mpirun --oversubscribe /opt/all_reduce_perf -n 20", 0),
        ("torchrun --log-dir /tmp/l --nproc-per-node 8 train.py -n 3", 8),
        ("srun torchrun --nnodes=2 --nproc-per-node=4 train.py", 8),
        ("srun -N2 torchrun --nproc-per-node=4 train.py", 8),
        ("srun -N2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc-per-node=8 train.py", 16),
        ("mpirun -np 2 a : -np 8 b", 0),
    ]
    for command, ranks in cases:
        with subtests.test(command=command):
            assert count_ranks(command) == ranks
