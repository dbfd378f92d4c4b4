"""``bnmc stability``: its table and its picture."""


def test_stability(run, document_of, tmp_path):
    arguments = ("stability", "--activation", "silu", "--batches", "8,32")
    found = document_of(*arguments)
    (silu,) = found["activations"]
    assert (silu["batches"], silu["stable"]) == ([8, 32], [True, False])
    assert silu["crossings"] == [[26, False]]
    status, out, _ = run(*arguments, "--plot", "atlas.png")
    assert status == 0
    assert "unstable from batch 26 on" in out
    assert (tmp_path / "atlas.png").stat().st_size > 1000
