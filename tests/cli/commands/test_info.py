"""``bnmc info``: versions and processors."""

import bnmc


def test_info(run, document_of):
    found = document_of("info")
    assert found["bnmc"] == bnmc.__version__
    assert found["processors"] >= 1
    assert "numba " in run("info")[1]
