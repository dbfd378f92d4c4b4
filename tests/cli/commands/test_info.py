"""``bnmc info``: versions and processors."""

from pathlib import Path

import bnmc


def test_info(run, document_of):
    found = document_of("info")
    assert found["bnmc"] == bnmc.__version__
    assert found["processors"] >= 1
    assert found["kernels of the wheel"] == "none"  # the tests run in the source tree
    assert "numba " in run("info")[1]


def test_info_counts_the_kernels_in_the_cache(document_of):
    bnmc.simulate(bnmc.Chain(8, 4), 1, rng=0)
    found = document_of("info")
    assert Path(found["kernel cache"]).is_dir()
    assert found["kernels in the cache"] >= 1
    assert found["megabytes in the cache"] > 0.0
