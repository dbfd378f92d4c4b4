"""What a simulation returns: arrays by name, means and errors, xarray, pickles."""

import copy
import json
import pickle

import numpy as np
import pytest

import bnmc
from bnmc import Chain, Network, simulate
from bnmc._support.text import dumps
from bnmc.errors import ArgumentError, UnknownNameError
from bnmc.simulation import trajectory

CHAIN = Chain(12, 3, "leaky_relu", norm="batch", gain=2.0, eps=1e-5)


def run_of(**options):
    return simulate(CHAIN, 6, **{"chains": 4, "rng": 0, "sampler": "conditional", **options})


def weights(generator, shape):
    return generator.standard_normal(shape)


def test_what_a_run_says_of_itself():
    run = run_of(every=4, observables=["gram", "rank_bound"])
    assert run.chain == CHAIN
    assert list(run.layers) == [0, 4, 6]
    assert run.observables.keys() == {"gram", "rank_bound"}
    assert not run.moments
    assert run.key == int(np.random.default_rng(0).integers(0, 2**64, dtype=np.uint64))
    assert (run.sampler, run.dtype, run.backend) == ("conditional", "float64", "cpu")
    assert (run.chains, run.inputs) == (4, None)
    assert run.cpu
    assert run.cpu == simulate(CHAIN, 0).cpu
    assert run.final_state.layer == 6
    assert run.final_state.chains == 4


def test_items_and_attributes():
    run = run_of()
    assert run["gram"] is run.gram is run.observables["gram"]
    with pytest.raises(UnknownNameError, match="name: got 'grams'.*did you mean 'gram'"):
        run["grams"]
    with pytest.raises(AttributeError, match="'rank_bound' was not recorded; add it to observ"):
        run.rank_bound  # noqa: B018
    assert not hasattr(run, "_private")
    with pytest.raises(AttributeError):
        run.key = 3


def test_what_was_reduced_is_in_the_moments():
    run = run_of(reduce="chain")
    with pytest.raises(ArgumentError, match="run.moments\\['gram'\\]"):
        run["gram"]
    with pytest.raises(AttributeError, match="gram"):
        run.gram  # noqa: B018


def test_repr():
    assert repr(run_of(burn_in=2)) == (
        "<Trajectory of 4 chains, 5 layers (2 to 6): gram; "
        "Chain(width=12, batch=3, activation='leaky_relu', gain=2.0, eps=1e-05)>"
    )
    assert "gram (moments)" in repr(run_of(reduce="layer"))
    assert "final_state" not in repr(run_of())


def test_the_table_has_numbers_by_layer_and_the_ends_of_the_spectrum():
    observables = ["gram", "eigenvalues", "orthogonality_gap"]
    run = run_of(observables=observables)
    document = json.loads(dumps(run.to_dict()))
    assert document["key"] == str(run.key)
    assert [row["layer"] for row in document["rows"]] == [0, 1, 2, 5, 6]
    assert list(document["rows"][0]) == [
        *("layer", "smallest_eigenvalue", "largest_eigenvalue", "orthogonality_gap")
    ]
    spectrum = run.eigenvalues[:, 5]
    for name, values in {
        "smallest_eigenvalue": spectrum[:, 0],
        "largest_eigenvalue": spectrum[:, -1],
        "orthogonality_gap": run.orthogonality_gap[:, 5],
    }.items():
        stderr = values.std(ddof=1) / 2.0
        assert document["rows"][3][name] == pytest.approx({"mean": values.mean(), "stderr": stderr})
    lines = str(run).splitlines()
    assert lines[0] == f"{CHAIN}: 4 networks, 7 recorded layers"
    assert lines[1].split("  ")[1:] == [
        "smallest eigenvalue",
        "largest eigenvalue",
        "orthogonality gap",
    ]
    gap = run.orthogonality_gap[:, 5]
    error = gap.std(ddof=1) / 2.0
    assert lines[5].endswith(str(bnmc.Estimate(gap.mean(), error, (0, 1), 4, "mean")))
    # Moments over the chains have the same table.
    reduced = run_of(observables=observables, reduce="chain")
    assert str(reduced) == str(run)


def test_the_table_of_one_chain_and_of_matrices_only():
    alone = run_of(chains=1, observables=["rank_bound"])
    assert alone.to_dict()["rows"][0]["rank_bound"]["stderr"] is None
    assert "±" not in str(alone)
    assert run_of().to_dict()["rows"][0] == {"layer": 0}
    assert str(run_of()) == repr(run_of())
    assert run_of(reduce="layer").to_dict()["rows"][0] == {"layer": 0}


@pytest.mark.parametrize(
    ("mean", "stderr", "text"),
    [
        (0.123456, 0.00123, "0.1235 ± 0.0012"),
        (12.3456, 0.456, "12.35 ± 0.46"),
        (0.866025403784, 2e-11, "0.866025 ± 2e-11"),
        (1e-17, 2e-18, "(1.00 ± 0.20)e-17"),
        (0.25, None, "0.25"),
        (0.25, 0.0, "0.25"),
    ],
)
def test_a_cell_of_the_table(mean, stderr, text):
    assert trajectory._cell({"mean": mean, "stderr": stderr}) == text


def test_the_layers_of_a_table():
    def shown(layers):
        return [int(layers[row]) for row in trajectory._shown(layers)]

    assert shown(np.arange(0)) == []
    assert shown(np.arange(1)) == [0]
    assert shown(np.arange(101)) == [0, 1, 2, 5, 10, 20, 50, 100]
    assert shown(np.arange(1, 1001))[-2:] == [500, 1000]
    assert shown(np.arange(0, 50, 7)) == [0, 7, 21, 49]
    for last in (9, 137, 2000, 9999, 1_000_000):
        rows = shown(np.arange(last + 1))
        assert len(rows) <= 12
        assert (rows[0], rows[-1]) == (0, last)


@pytest.mark.parametrize("chains", [1, 2, 7])
def test_means_and_their_errors(chains):
    """One chain has a mean but no error; of two values it is half of their difference."""
    run = run_of(chains=chains, observables=["gram", "rank_bound"])
    reduced = run_of(chains=chains, reduce="chain")
    for name in ("gram", "rank_bound"):
        values = run[name]
        np.testing.assert_allclose(run.mean(name), values.mean(axis=0), rtol=1e-14)
        error = np.full(values.shape[1:], np.nan)
        if chains > 1:
            error = values.std(axis=0, ddof=1) / np.sqrt(chains)
        np.testing.assert_allclose(run.stderr(name), error, rtol=1e-12, atol=1e-15)
    moments = reduced.moments["gram"]
    assert moments.count == chains
    np.testing.assert_allclose(moments.stderr, np.sqrt(moments.variance / chains), rtol=1e-15)
    np.testing.assert_allclose(reduced.mean("gram"), run.mean("gram"), rtol=1e-13)
    np.testing.assert_allclose(reduced.stderr("gram"), run.stderr("gram"), rtol=1e-9, atol=1e-12)
    with pytest.raises(UnknownNameError, match="rank_bound"):
        reduced.mean("rank_bound")


def test_attributes_say_how_to_repeat_the_run():
    attributes = run_of().attributes()
    assert attributes == {
        "bnmc_version": bnmc.__version__,
        "chain": repr(CHAIN),
        "width": 12,
        "batch": 3,
        "activation": "leaky_relu",
        "norm": "batch",
        "skip": 0.0,
        "gain": 2.0,
        "weights": "gaussian",
        "eps": 1e-5,
        "order": "norm-activation",
        "bias_variance": 0.0,
        "convolution": "None",
        "key": str(run_of().key),
        "sampler": "conditional",
        "dtype": "float64",
        "backend": "cpu",
        "cpu": run_of().cpu,
        "chains": 4,
        "inputs": 0,
    }
    # Files hold such values, and no others, as attributes.
    assert {type(value) for value in attributes.values()} == {str, int, float}
    of_function = simulate(Chain(12, 3, "leaky_relu", weights=weights), 0, inputs=2, rng=0)
    assert of_function.attributes()["weights"] == "user"
    assert of_function.attributes()["inputs"] == 2


# --- xarray ---------------------------------------------------------------------------------


def test_to_xarray():
    pytest.importorskip("xarray")
    observables = ["gram", "cross_gram", "eigenvalues", "log_scale", "soft_rank", np.trace]
    run = run_of(every=4, inputs=2, observables=observables)
    dataset = run.to_xarray()
    dims = {
        "gram": ("chain", "layer", "input", "sample_i", "sample_j"),
        "cross_gram": ("chain", "layer", "input_i", "input_j", "sample_i", "sample_j"),
        "eigenvalues": ("chain", "layer", "input", "mode"),
        "log_scale": ("chain", "layer"),
        "soft_rank": ("chain", "layer", "input"),
        "trace": ("chain", "layer", "input"),
    }
    assert {name: variable.dims for name, variable in dataset.items()} == dims == run.dims
    for name in dims:
        assert np.array_equal(dataset[name].values, run[name])
    assert list(dataset["layer"].values) == [0, 4, 6]
    assert list(dataset["chain"].values) == [0, 1, 2, 3]
    assert dataset.attrs == run.attributes()
    assert np.array_equal(dataset.gram.sel(layer=4), run.gram[:, 1])


@pytest.mark.parametrize(
    ("reduce", "dims"),
    [
        ("chain", ("layer", "sample_i", "sample_j")),
        ("layer", ("chain", "sample_i", "sample_j")),
        (("layer", "chain"), ("sample_i", "sample_j")),
    ],
)
def test_moments_to_xarray(reduce, dims):
    pytest.importorskip("xarray")
    run = run_of(reduce=reduce)
    dataset = run.to_xarray()
    assert set(dataset) == {"gram_mean", "gram_variance"}
    assert set(dataset.coords) == {"chain", "layer"}.intersection(dims)
    for field in ("mean", "variance"):
        assert dataset[f"gram_{field}"].dims == dims
        assert np.array_equal(dataset[f"gram_{field}"].values, getattr(run.moments["gram"], field))


def test_to_datatree():
    xarray = pytest.importorskip("xarray")
    run = run_of()
    tree = run.to_datatree()
    xarray.testing.assert_identical(tree["run"].to_dataset(), run.to_xarray())


# --- pickles --------------------------------------------------------------------------------


def test_a_run_travels_whole():
    for run in (
        run_of(observables=["gram", "rank_bound"]),
        run_of(reduce="chain", dtype="float32"),
        run_of(sampler="weights", inputs=2),
        simulate(Chain(12, 3, "linear", norm="none"), 2, rng=0),  # in factors
    ):
        for twin in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run), copy.copy(run)):
            assert repr(twin) == repr(run)
            assert twin.chain == run.chain
            assert twin.attributes() == run.attributes()
            assert twin.dims == run.dims
            assert np.array_equal(twin.layers, run.layers)
            for name, values in run.observables.items():
                assert np.array_equal(twin[name], values)
            assert twin.final_state.layer == run.final_state.layer
            for name, values in run.final_state.arrays.items():
                assert np.array_equal(twin.final_state.arrays[name], values)
            for name, moments in run.moments.items():
                assert twin.moments[name].count == moments.count
                assert np.array_equal(twin.moments[name].mean, moments.mean)
                assert np.array_equal(twin.moments[name].variance, moments.variance)


def test_a_state_is_left_as_it_was():
    start = simulate(CHAIN, 2, chains=2, rng=3).final_state
    before = {name: values.copy() for name, values in start.arrays.items()}
    once, twice = (simulate(CHAIN, 3, initial=start).gram for _ in range(2))
    assert np.array_equal(once, twice)
    for name, values in before.items():
        assert np.array_equal(start.arrays[name], values)


def test_the_document_of_a_network_has_its_stages():
    network = Network((Chain(6, 3, "relu"), 2), (Chain(4, 3, "tanh"), 1))
    stages = simulate(network, rng=0).to_dict()["chain"]["stages"]
    assert [(stage["width"], stage["activation"], stage["depth"]) for stage in stages] == [
        (6, "relu", 2), (4, "tanh", 1)
    ]  # fmt: skip
