"""Launch through mpirun of Open MPI, MPICH or Intel MPI."""
