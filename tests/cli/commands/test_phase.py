"""``bnmc phase``: what it prints."""

import bnmc

TANH = ("phase", "--activation", "tanh", "--weight-variance", "1.5", "--bias-variance", "0.05")


def test_phase(run, document_of):
    found = document_of(*TANH)
    field = bnmc.mean_field.CorrelationMap("tanh", weight_variance=1.5, bias_variance=0.05)
    star = field.phase()
    assert found["phase"] == "ordered"
    assert found["gradient_factor"] == star.gradient_factor
    assert found["correlation_depth"] == star.correlation_depth
    edge = bnmc.mean_field.edge_of_chaos("tanh", 0.05)
    assert found["edge_weight_variance"] == float(edge.weight_variance)
    status, out, _ = run(*TANH)
    assert status == 0
    assert "phase  ordered" in out
    assert f"{star.gradient_factor:.6g}" in out


def test_without_edge_and_with_skip_connection(run, document_of):
    found = document_of("phase", "--activation", "relu", "--bias-variance", "1")
    assert found["edge_weight_variance"] is None
    status, out, _ = run("phase", "--activation", "relu", "--weight-variance", "2", "--skip", "1")
    assert status == 0
    assert "variance  infinite" in out
    assert "edge weight variance  none" in out


def test_norms_over_the_batch_name_the_other_command(run):
    status, _, err = run("phase", "--norm", "batch")
    assert status == 2
    assert "MeanField" in err
