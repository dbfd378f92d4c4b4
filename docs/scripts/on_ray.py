"""A run on a Ray cluster."""

import ray

import bnmc


class RayExecutor:
    """Calls functions on the workers of Ray."""

    def __init__(self):
        self.num_workers = int(ray.cluster_resources()["CPU"])
        self._call = ray.remote(lambda function, arguments: function(*arguments))

    def submit(self, function, /, *arguments):
        return self._call.remote(function, arguments).future()


if __name__ == "__main__":
    ray.init()
    run = bnmc.simulate(bnmc.Chain(200, 5, "relu"), 20, chains=32, rng=0, executor=RayExecutor())
    print(run)
