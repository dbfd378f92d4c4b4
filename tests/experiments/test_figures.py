"""What all figures share: soundness, approved pictures, sizes, interruption, threads, progress."""

import inspect

import pytest
from experiment_checks import require_sound
from figure_sizes import FIGURES, run

from bnmc import experiments
from bnmc.errors import ArgumentError, ArgumentTypeError, StoreMismatchError, UnknownNameError
from bnmc.experiments import sizes
from bnmc.experiments.registry import function_of, sizes_of

NAMES = [name for name in experiments.names() if "sizes" in vars(function_of(name))]

#: Figures with times, which differ in each run.
TIMED = ("scale",)

#: Figures whose small sizes take more than a second.
SLOW = (
    "gradients-directions", "orthogonalizes-3", "rank-collapse-1", "rank-collapse-4",
    "rank-collapse-5", "rank-collapse-10", "rank-collapse-centring",
)  # fmt: skip


def test_every_figure_has_small_sizes():
    assert tuple(FIGURES) == experiments.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_sound(name, small):
    require_sound(small(name), name, approved=False if name in TIMED else None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else [])
        for name in NAMES
        if name not in TIMED
    ],
)
def test_an_interrupted_figure_goes_on(name, small, tmp_path):
    """The rest runs on one thread, the uninterrupted figure on two."""

    def stop(done, total):
        if done > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(name, store=tmp_path / "parts", progress=stop)
    told = []
    again = run(
        name, store=tmp_path / "parts", threads=1,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert again.data.identical(small(name).data)
    assert (again.table, again.findings) == (small(name).table, small(name).findings)
    assert told == sorted(set(told))
    assert told[-1] == (100, 100)
    sizes, rng = FIGURES[name]
    full = sizes_of(name)[0]._asdict().items() >= sizes.items()
    others = sizes_of(name)[full]._asdict()
    differing = next(size for size, value in others.items() if sizes.get(size, value) != value)
    with pytest.raises(StoreMismatchError, match=f"{differing} = "):
        function_of(name)(store=tmp_path / "parts", rng=rng, full=full)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_arguments(name):
    function, (default, full) = function_of(name), sizes_of(name)
    parameters = inspect.signature(function).parameters
    assert list(parameters)[-len(default) :] == list(default._fields)
    assert all(parameters[size].default is None for size in default._fields)
    assert type(full) is type(default)
    text = " ".join(inspect.getdoc(function).split())
    for values in (default, full):
        assert sizes.checked(default, values._asdict()) == values
        texts = [f"{size}={sizes.as_text(value)}" for size, value in values._asdict().items()]
        assert sizes.parsed(type(default), texts) == values._asdict()
        assert all(sizes.literal(value) in text for value in values)
    with pytest.raises(UnknownNameError, match="size: got 'nothing', allowed: "):
        function(nothing=3)
    with pytest.raises(ArgumentTypeError, match=rf"^{default._fields[0]}: got "):
        function(**{default._fields[0]: object()})
    with pytest.raises(ArgumentTypeError, match="full"):
        function(full="yes")
    if "data" not in parameters:
        with pytest.raises(ArgumentError, match="trains no network"):
            function(data="folder")
