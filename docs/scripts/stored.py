"""A run on a Dask cluster that continues where an earlier process ended."""

from distributed import Client, LocalCluster

import bnmc

if __name__ == "__main__":
    chain = bnmc.Chain(1000, 10, "relu")
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        run = bnmc.simulate(
            chain, 1000, chains=400, rng=0, store="run.zarr", executor=client, progress=True
        )
        print(run)
