"""A run on a Dask cluster: here, two worker processes of this machine."""

from distributed import Client, LocalCluster

import bnmc

if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        run = bnmc.simulate(bnmc.Chain(200, 5, "relu"), 20, chains=32, rng=0, executor=client)
        print(run)
