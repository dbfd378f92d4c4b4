"""The test of a whole network of another program, layer by layer given the layers before.

A call of a network returns the states of all layers.  Given those before a layer, its rows are
independent normals as in the test of a step (`calls_on_state`), so the tests are as exact.  Their
covariances differ from call to call, which `CallsOfLayer` takes into account.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bnmc import gram as gm
from bnmc._claims.claims import Claim, Evidence, assessed, of_one_step
from bnmc._claims.layer import COARSE, Layer, rounding_noise
from bnmc._support.arguments import Float64Array
from bnmc._support.workers import ranges
from bnmc.chain.chain import ORDERS, Chain, Network, layer_at
from bnmc.chain.layers import Layer as LayerOfNetwork
from bnmc.errors import ArgumentError, ArgumentTypeError, NonFiniteError, ZeroVarianceError
from bnmc.testing.calls_on_state import CallsOfLayer, Products
from bnmc.testing.exact_tests import exact_claims, product_claims
from bnmc.testing.states import (
    BLOCK_NUMBERS,
    ReturnedStates,
    given_states,
    layer_of,
    numbers_of_calls,
)

#: Standard errors of a cause that is named.
_ERRORS = 8.0


class _CheckedNetwork(ReturnedStates):
    """The caller's network, with checks of the states that it returns."""

    def __init__(self, network: Callable[[Float64Array], Any], chains: Sequence[LayerOfNetwork]):
        super().__init__(network)
        self._layers = chains

    def __call__(self, h: Float64Array) -> list[Float64Array]:
        """Return the states of layers 1, 2, …, or raise if the network does not return them."""
        values = self.call(h)
        if not isinstance(values, (list, tuple)) or len(values) != len(self._layers):
            allowed = f"a list of the states of layers 1 to {len(self._layers)}"
            raise ArgumentTypeError("step(h)", values, allowed)
        return [
            self.checked(
                f"step(h)[{place}]", value, (layer.linear.width, layer.rows.batch),
                layer.linear.gain,
            )
            for place, (value, layer) in enumerate(zip(values, self._layers, strict=True))
        ]  # fmt: skip


class _Skipped(NamedTuple):
    """What a skip path adds: the values, and the covariances of their rounding errors."""

    values: Float64Array
    noise: Float64Array


class NetworkTest:
    """The test of a network, which continues call by call.

    Parameters
    ----------
    network : callable
        The caller's network.
    expected : Network
    generator : numpy.random.Generator
        For the states of layer 0.

    Attributes
    ----------
    step : callable
        The caller's network, with checks; it counts its calls
    chains : list of Chain
        For each layer from 1 on, the chain whose step leads from the state before it to its own,
        apart from its number of rows and from skip paths.
    width : int
        The least width of a layer from 1 on.
    calls_to_explain : int
        Least number of calls on each state for an explanation.
    """

    calls_to_explain = 32

    def __init__(
        self,
        network: Callable[[Float64Array], Any],
        expected: Network,
        generator: np.random.Generator,
    ) -> None:
        layers = [layer_at(expected, number) for number in range(expected.depth + 1)]
        self._layers, self.step = layers, _CheckedNetwork(network, layers[1:])
        self.chains = [_between(*pair) for pair in pairwise(layers)]
        self.width = min(layer.linear.width for layer in layers[1:])
        given = given_states(self.chains[0], generator)
        self._starts = [(name, h) for name, h in given if layer_of(self.chains[0], h) is not None]
        # Each start has the same seed, so that all compare the same rows.
        seed, self._generator = int(generator.integers(2**63)), generator
        self._states = [
            [
                CallsOfLayer(name, layer.linear.width, expected.batch, np.random.default_rng(seed))
                for name, _ in self._starts
            ]
            for layer in layers[1:]
        ]
        self._calls = 0
        self._evidence: list[defaultdict[str, list[Evidence]]] = [defaultdict(list) for _ in layers]
        self._across = {lag: Products() for lag in range(1, expected.depth)}

    def numbers_of_calls(self, rows: int) -> list[int]:
        """Return the numbers of calls on each state of layer 0 after which there is a verdict."""
        laws = [chain.layers[1].linear.law for chain in self.chains]
        is_gaussian = all(law.rows_given_gram or law.is_identity for law in laws)
        return numbers_of_calls(self.width, rows, is_gaussian=is_gaussian)

    def claims_after(self, calls: int) -> Iterator[Claim]:
        """Call the network until each state of layer 0 has `calls` calls; yield the claims."""
        size = max(layer.linear.width for layer in self._layers) * self._layers[0].rows.batch
        block = 2 * max(1, BLOCK_NUMBERS // (2 * size))
        for place, (_, h) in enumerate(self._starts):
            for first, last in ranges(calls - self._calls, block):
                self._add(place, h, last - first)
        self._calls = calls
        for number, states in enumerate(self._states, 1):
            seen = [state for state in states if state.calls]
            for claim in exact_claims(seen) if seen else self._moments(number):
                yield replace(claim, claim=f"layer {number}: {claim.claim}")
        for lag, products in self._across.items():
            if products.count:
                yield from product_claims(f"layers l and l + {lag}", [products])

    def _moments(self, number: int) -> Iterator[Claim]:
        """Yield the claims of a layer without Gaussian weights, by the central limit theorem."""
        for claim, parts in self._evidence[number].items():
            yield assessed(claim, Evidence.joined(parts), min(self.step.rounding, COARSE))

    def _add(self, place: int, h: Float64Array, count: int) -> None:
        """Call the network on a state of layer 0 an even number of times."""
        calls = [self.step(h) for _ in range(count)]
        states = [np.repeat(h[None], count, axis=0), *map(np.stack, zip(*calls, strict=True))]
        paths: list[_Skipped] = []
        normals: list[Float64Array | None] = []
        for number, (layer, chain) in enumerate(zip(self._layers[1:], self.chains, strict=True), 1):
            try:
                before = Layer.of(chain, states[number - 1], 0)
                paths += self._begun(number, chain, states[number - 1])
            except (ZeroVarianceError, NonFiniteError):
                return  # a layer before fails, or the law of this one has no such states
            skip, gain, gram = layer.rows.skip, chain.gain, before.gram
            noise = rounding_noise(chain, before, self.step.rounding)
            added = _Skipped(before.x, 0.0 * noise) if layer.path is None else paths.pop()
            if layer.path is not None and (linear := layer.path.projection) is not None:
                factor = skip * linear.gain / gain
                gram = gram + factor**2 * linear.covariance()(gm.cross_gram(*[added.values] * 2))
                noise, skip = noise + factor**2 * added.noise, 0.0
            else:
                noise = noise + (skip / gain) ** 2 * added.noise
            shape = states[number].shape
            shift = added.values if added.values.shape == shape else np.zeros(shape)
            rest = (states[number] - skip * shift) / gain
            is_sum = layer.linear.law.is_identity
            if is_sum:  # what remains are rounding errors
                rest, gram = rest - before.a, 0.0 * gram
            normals.append(None)
            if chain.is_gaussian or is_sum:
                fresh = self._generator.standard_normal(shape)
                calls_of = self._states[number - 1][place]
                normals[-1] = calls_of.add(rest, shift, gram, before.factors, noise, fresh)
                self._compare(normals)
            else:
                given = replace(before, x=0.0 * rest, gram=gram)
                self._take_moments(number, chain, given, rest, noise)

    def _begun(self, number: int, chain: Chain, h: Float64Array) -> Iterator[_Skipped]:
        """Yield what the skip paths take that begin before a layer."""
        for path in self._layers[number].begins:
            # Beside a skip connection, the order tells what the layer keeps.
            there = replace(chain, skip=chain.gain)
            seen = Layer.of(there, h, 0)
            noise = rounding_noise(there, seen, self.step.rounding)
            yield _Skipped(seen.a if path.takes_activations else seen.x, noise)

    def _compare(self, normals: Sequence[Float64Array | None]) -> None:
        """Add products of the rows of a layer with those of the same places in layers before."""
        last = normals[-1]
        assert last is not None
        for lag in range(1, len(normals)):
            if (first := normals[-1 - lag]) is not None:
                rows = min(first.shape[1], last.shape[1])
                of_first = first[:, :rows]
                self._across[lag].add(of_first, last[:, :rows], np.square(of_first).sum(axis=2))

    def _take_moments(
        self, number: int, chain: Chain, before: Layer, rest: Float64Array, noise: Float64Array
    ) -> None:
        without_skip = replace(chain, skip=0.0)
        evidence_of, _ = of_one_step(without_skip, before, rest, self.step.rounding, noise)
        for claim, evidence in evidence_of.items():
            self._evidence[number][claim].append(evidence)

    def causes(self, failed: set[str]) -> tuple[str, ...]:
        """Return the most likely causes of failed claims."""
        numbers = [int(name.split()[1][:-1]) for name in failed if name.startswith("layer ")]
        spread = any(name.endswith("variance relative to G") for name in failed)
        if not numbers or (not spread and any(name.startswith("layers") for name in failed)):
            return ("several layers use the same weights: draw independent weights for each layer",)
        number = min(numbers)
        text = f"layer {number} has another law given the layers before it"
        states = [state for state in self._states[number - 1] if state.calls]
        return (f"{text}{self._difference(number, states)}",)

    def _difference(self, number: int, states: Sequence[CallsOfLayer]) -> str:
        """Return how the rows of a layer differ, if their covariances tell it."""
        if not states:
            return ""
        layer, gain = self._layers[number], self.chains[number - 1].gain
        square = sum(state.shift_square for state in states)
        product = sum(state.shift_product for state in states)
        energies, degrees = np.concatenate([state.squares for state in states], axis=1)
        if not degrees.any():
            return ": it is not the sum of the skip path and the activations before"
        variance = float(energies.sum() / degrees.sum())
        if product**2 > _ERRORS**2 * variance * square:
            skip = layer.rows.skip + gain * product / square
            return f": the factor of its skip connection is {skip:.4g}, not {layer.rows.skip:g}"
        # Squared norms of calls have a χ² law up to the scale, and samples are uncorrelated.
        spread = np.square(energies / variance - degrees) / np.maximum(2 * degrees, 1)
        above = np.triu_indices(states[0].rank, 1)
        full = [state for state in states if (state.squares[1] == state.total.size).all()]
        between = np.square([state.root[above] for state in full]) / variance
        is_isotropic = between.size == 0 or between.mean() < 1.0 + _ERRORS * np.sqrt(
            2 / between.size
        )
        if is_isotropic and abs(spread.mean() - 1.0) < _ERRORS * np.sqrt(1 / degrees.size):
            return f": the output is scaled by {np.sqrt(variance):.4g}"
        return ": its covariance is another one (norm, activation, order, what a skip path takes?)"


def _between(before: LayerOfNetwork, layer: LayerOfNetwork) -> Chain:
    """Return the chain whose step leads from a layer to the next, apart from its rows."""
    rows, linear, path = before.rows, layer.linear, layer.path
    laws = [linear.law]
    if path is not None and path.projection is not None:
        laws.append(path.projection.law)
        if path.norm is not None:
            hint = "rows of a norm are not Gaussian given the layers before"
            raise ArgumentError("projection", path.norm.norm.name, "one of norm 'none'", hint)
    law = next((each for each in laws if not each.rows_given_gram), linear.law)
    if law.is_orthogonal and (len(laws) > 1 or linear.width < linear.fan_in):
        allowed = "independent entries where a layer is narrower, or a projection ends"
        raise ArgumentError("weights", law.name, allowed)
    return Chain(
        before.linear.width, rows.batch, rows.activation, norm=rows.norm, eps=rows.eps,
        order=next(name for name, code in ORDERS.items() if code == rows.order),
        skip=layer.rows.skip if path is None else 0.0, gain=linear.gain,
        bias_variance=linear.bias_variance, convolution=linear.convolution,
        weights=law.entries if law.name in ("user", "identity") else law.name,
    )  # fmt: skip
