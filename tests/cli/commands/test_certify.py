"""``bnmc certify``: its bound, its picture, and chains that do not mix."""

import bnmc

CHAIN = ("--width", "40", "--batch", "4")


def test_certify(run, document_of, tmp_path):
    arguments = ("certify", *CHAIN, "--depth", "8", "--replicates", "50", "--seed", "3")
    cert = bnmc.mixing.tv_bound(bnmc.Chain(40, 4, "relu"), 8, replicates=50, rng=3)
    found = document_of(*arguments)
    assert found["bound"] == cert.bound.tolist()
    assert (found["seed"], found["lag"]) == (3, cert.lag)
    status, out, _ = run(*arguments, "--plot", "cert.svg")
    assert status == 0
    assert str(cert) in out
    assert out.endswith("seed 3\npicture: cert.svg\n")
    assert (tmp_path / "cert.svg").exists()


def test_a_horizon_and_what_the_caller_excludes(document_of):
    small = "--activation", "tanh", "--depth", "8", "--replicates", "50", "--seed", "3"
    options = "--lag", "4", "--horizon", "90", "--tail-probability", "0"
    found = document_of("certify", *CHAIN, *small, *options)
    cert = bnmc.mixing.tv_bound(
        bnmc.Chain(40, 4, "tanh"), 8, replicates=50, lag=4, horizon=90, tail_probability=0.0, rng=3
    )
    assert (found["law"], found["horizon"], found["tail_probability"]) == ("stationary", 92, 0.0)
    assert found["ci"] == cert.ci.tolist()
    assert found["assumes"] == list(cert.assumes)


def test_a_chain_that_does_not_mix_has_a_status_of_its_own(run):
    status, out, err = run(
        "certify", "--width", "25", "--batch", "10", "--activation", "linear", "--seed", "1"
    )
    assert (status, out) == (3, "")
    assert "lost rank" in err
    assert err.count("\n") == 1


def test_norms_orders_and_biases(document_of):
    options = {"norm": "layer", "order": "activation-norm", "bias_variance": 0.1}
    chain = bnmc.Chain(40, 4, "relu", **options)
    cert = bnmc.mixing.tv_bound(chain, 8, replicates=20, rng=3)
    flags = "--norm", "layer", "--order", "activation-norm", "--bias-variance", "0.1"
    small = "--depth", "8", "--replicates", "20", "--seed", "3"
    found = document_of("certify", *CHAIN, *flags, *small)
    assert found["bound"] == cert.bound.tolist()
    assert found["chain"] == repr(chain)


def test_threads_change_no_result(run, document_of):
    small = "--width", "60", "--batch", "4", "--depth", "12", "--replicates", "40", "--seed", "1"
    alone = document_of("certify", *small, "--threads", "1")
    assert document_of("certify", *small) == alone
    status, _, err = run("certify", *small, "--threads", "0")
    assert status == 2
    assert "threads: got 0" in err
