"""Outputs in the mean-field scaling."""

FIGURE = "training-mean-field"


def test_three_layers_of_tanh_vanish_and_others_do_not(data):
    """Between the narrow widths the outputs of three layers fall by less than in the limit."""
    outputs = data["outputs"]
    first, last = outputs.isel(width=0), outputs.isel(width=-1)
    ratio = {str(name): float(last.sel(network=name) / first.sel(network=name))
             for name in data["network"].values}  # fmt: skip
    for name in ("tanh, 1 hidden layer", "tanh, 2 hidden layers", "sigmoid, 3 hidden layers"):
        assert 0.85 < ratio[name] < 1.15
    assert ratio["tanh, 3 hidden layers"] < 0.7
    assert ratio["tanh, 4 hidden layers"] < 0.7 * ratio["tanh, 3 hidden layers"]
