"""A run on MPI processes."""

from mpi4py.futures import MPIPoolExecutor

import bnmc

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        run = bnmc.simulate(bnmc.Chain(200, 5, "relu"), 20, chains=32, rng=0, executor=pool)
        print(run)
