"""Training from three starts: orthogonality and losses."""

FIGURE = "training-orthogonal-start"


def test_a_maximized_start_is_the_most_orthogonal(data):
    gap = data["gap"]
    for start in ("Gaussian", "orthogonal"):
        assert (gap.sel(start="maximized") < gap.sel(start=start)).all()


def test_a_maximized_start_has_the_lowest_loss(data):
    loss = data["loss"]
    assert (loss.sel(start="maximized") < loss.sel(start="Gaussian")).all()
