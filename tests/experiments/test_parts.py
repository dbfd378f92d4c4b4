"""Seeds, and the progress of parts."""

import numpy as np

from bnmc.experiments.parts import Parts, Sources

SEVEN = Sources(7)


class TestParts:
    def test_seeds_repeat(self):
        for rng in (7, np.int64(7)):
            assert Sources(rng).seed == 7
        first = Sources(np.random.default_rng(1))
        again = Sources(first.seed)
        assert first.generator.random() == again.generator.random()
        assert Sources(None).seed != Sources(None).seed

    def test_progress_only_grows_and_ends(self):
        told = []
        with Parts(lambda done, total: told.append((done, total)), "x", [1, 3], SEVEN) as run:
            report = run.next()
            report(1, 2)
            report(0, 2)
            report = run.next()
            report(1, 2)
            run.next()  # a run too many stays within the last part
        assert told == [(0, 100), (12, 100), (25, 100), (62, 100), (100, 100)]
        told.clear()
        stopped = Parts(lambda *one: told.append(one), "x", [1], SEVEN)
        stopped.__enter__().next()
        stopped.__exit__(KeyError, KeyError(), None)
        assert told == [(0, 100)]  # what failed is not done
