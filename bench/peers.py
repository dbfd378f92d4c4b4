"""What the library is compared with: the same chain, written by hand in other packages.

The chain is relu with batch normalization (mean and variance of each row, ddof 0), float32:

    a = relu(x),   G = a' a / d,   x <- N(W a),   W (d, d) with independent N(0, 1/d) entries.

Every peer is a factory.  It returns a call without arguments that runs the wanted number of
layers and returns the Gram matrices, shape (chains, layers, n, n), one for each layer.

*Weights* peers draw a fresh W in each layer of one chain.  The factor 1/sqrt(d) is applied to
`a` (d n products), not to W (d d products): the law is the same and the peers are faster.
*Conditional* peers draw W a given G, as the library does (the rows of W a are independent
N(0, G)): Z R with Z (d, n - 1) standard normal and R' R = P G P, P the projector that centres.
They take a batch of chains, which is how vectorised code reaches its best speed.

Where JAX and PyTorch are not installed their peers are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Peer = Callable[[], Any]
WeightsFactory = Callable[[int, int, int], Peer]  # (width, batch, layers)
ConditionalFactory = Callable[[int, int, int, int], Peer]  # (width, batch, layers, chains)


def weights_peers() -> dict[str, WeightsFactory]:
    """Straightforward loops that draw W: what the floors are measured against."""
    peers: dict[str, WeightsFactory] = {"NumPy": numpy_weights}
    if _installed("torch"):
        peers["PyTorch"] = torch_weights
    if _installed("jax"):
        peers["JAX"] = jax_weights
    return peers


def tuned_weights_peers() -> dict[str, WeightsFactory]:
    """The same loops with W drawn into one buffer, which saves the page faults of a fresh W."""
    peers: dict[str, WeightsFactory] = {"NumPy, one buffer": partial(numpy_weights, buffer=True)}
    if _installed("torch"):
        peers["PyTorch, one buffer"] = partial(torch_weights, buffer=True)
    return peers


def conditional_peers() -> dict[str, ConditionalFactory]:
    """The conditional sampler in vectorised NumPy and in JAX."""
    peers: dict[str, ConditionalFactory] = {"NumPy": numpy_conditional}
    if _installed("jax"):
        peers["JAX"] = jax_conditional
    return peers


def numpy_weights(width: int, batch: int, layers: int, *, buffer: bool = False) -> Peer:
    """NumPy: Generator.standard_normal, one matrix product a layer."""
    rng = np.random.default_rng(0)
    initial = _initial(1, width, batch)[0]
    scale = np.float32(width**-0.5)
    weights = np.empty((width, width), np.float32) if buffer else None

    def run() -> Float32:
        grams = np.empty((1, layers, batch, batch), np.float32)
        x = initial
        for layer in range(layers):
            a = np.maximum(x, 0) * scale
            grams[0, layer] = a.T @ a
            x = _numpy_normalize(
                rng.standard_normal((width, width), dtype=np.float32, out=weights) @ a
            )
        return grams

    return run


def torch_weights(width: int, batch: int, layers: int, *, buffer: bool = False) -> Peer:
    """PyTorch on the CPU: torch.randn, one matrix product a layer, no gradients."""
    import torch

    initial = torch.from_numpy(_initial(1, width, batch)[0])
    weights = torch.empty(width, width) if buffer else None

    def run() -> Any:
        with torch.no_grad():
            grams = torch.empty(1, layers, batch, batch)
            x = initial
            for layer in range(layers):
                a = torch.relu(x) * width**-0.5
                grams[0, layer] = a.T @ a
                h = torch.randn(width, width, out=weights) @ a
                variance, mean = torch.var_mean(h, dim=1, correction=0, keepdim=True)
                x = (h - mean) * torch.rsqrt(variance)
            return grams

    return run


def jax_weights(width: int, batch: int, layers: int) -> Peer:
    """JAX on the CPU: jit around lax.scan, jax.random.normal with the default generator."""
    jax = _jax_on_cpu()
    jnp = jax.numpy

    def layer(x: Any, key: Any) -> tuple[Any, Any]:
        a = jax.nn.relu(x) * width**-0.5
        h = jax.random.normal(key, (width, width), jnp.float32) @ a
        h = h - h.mean(axis=1, keepdims=True)
        return h * jax.lax.rsqrt((h * h).mean(axis=1, keepdims=True)), a.T @ a

    @jax.jit
    def chain(x: Any, key: Any) -> Any:
        return jax.lax.scan(layer, x, jax.random.split(key, layers))[1][None]

    return _jax_run(chain, jnp.asarray(_initial(1, width, batch)[0]))


def numpy_conditional(width: int, batch: int, layers: int, chains: int) -> Peer:
    """The conditional sampler in NumPy, all chains in one array."""
    rng = np.random.Generator(np.random.SFC64(0))  # NumPy's fastest
    basis = helmert(batch)
    first = _initial(chains, width, batch)
    first = np.maximum(first, 0)
    initial = first.transpose(0, 2, 1) @ first / np.float32(width)
    z = np.empty((chains, width, batch - 1), np.float32)

    def run() -> Float32:
        grams = np.empty((chains, layers, batch, batch), np.float32)
        gram = initial
        for layer in range(layers):
            grams[:, layer] = gram
            factor = np.linalg.cholesky(basis.T @ gram @ basis)
            rng.standard_normal(dtype=np.float32, out=z)
            h = z @ (factor.transpose(0, 2, 1) @ basis.T)
            # The rows of h are centred already, and their scale commutes with relu.
            h /= np.sqrt(np.einsum("cri,cri->cr", h, h) / np.float32(batch))[..., None]
            np.maximum(h, 0, out=h)
            gram = h.transpose(0, 2, 1) @ h / np.float32(width)
        return grams

    return run


def jax_conditional(width: int, batch: int, layers: int, chains: int) -> Peer:
    """The conditional sampler in JAX: jit, vmap over chains, scan over layers."""
    jax = _jax_on_cpu()
    jnp = jax.numpy
    basis = jnp.asarray(helmert(batch))

    def layer(gram: Any, key: Any) -> tuple[Any, Any]:
        factor = jnp.linalg.cholesky(basis.T @ gram @ basis)
        h = jax.random.normal(key, (width, batch - 1), jnp.float32) @ (factor.T @ basis.T)
        a = jax.nn.relu(h * jax.lax.rsqrt((h * h).mean(axis=1, keepdims=True)))
        return a.T @ a / width, gram

    def chain(x: Any, key: Any) -> Any:
        a = jax.nn.relu(x)
        return jax.lax.scan(layer, a.T @ a / width, jax.random.split(key, layers))[1]

    @jax.jit
    def ensemble(x: Any, key: Any) -> Any:
        return jax.vmap(chain)(x, jax.random.split(key, chains))

    return _jax_run(ensemble, jnp.asarray(_initial(chains, width, batch)))


def helmert(batch: int) -> Float32:
    """Orthonormal basis (batch, batch - 1) of the vectors that sum to zero."""
    basis = np.zeros((batch, batch - 1))
    for column in range(1, batch):
        basis[:column, column - 1] = 1.0
        basis[column, column - 1] = -column
        basis[:, column - 1] /= np.sqrt(column * (column + 1))
    return basis.astype(np.float32)


def verify(peer: Peer, batch: int) -> None:
    """Raise unless the Gram matrices of a peer are those of the chain.

    By the symmetry h -> -h the mean diagonal of G is 1/2 in expectation at every width and in
    every layer; the mean off-diagonal entry is J(-1/(n-1))/2 + O(1/d) with
    J(x) = (sqrt(1 - x^2) + (pi - arccos x) x)/pi.
    """
    grams = np.asarray(peer(), dtype=np.float64)[:, 1:]
    diagonal = grams.diagonal(axis1=2, axis2=3).mean(axis=2).ravel()
    error = abs(diagonal.mean() - 0.5)
    if not error <= 6 * diagonal.std() / np.sqrt(diagonal.size):
        raise AssertionError(f"mean diagonal of G is {diagonal.mean()}, not 1/2")
    rho = -1 / (batch - 1)
    limit = (np.sqrt(1 - rho**2) + (np.pi - np.arccos(rho)) * rho) / np.pi / 2
    total = grams[:, grams.shape[1] // 2 :].sum(axis=(2, 3)).mean()
    entry = (total - batch * diagonal.mean()) / (batch * (batch - 1))
    if not abs(entry / limit - 1) < 0.05:
        raise AssertionError(f"mean off-diagonal entry of G is {entry}, not {limit}")


def _initial(chains: int, width: int, batch: int) -> Float32:
    """Normalized Gaussian representations, shape (chains, width, batch)."""
    drawn = np.random.default_rng(1).standard_normal((chains, width, batch), dtype=np.float32)
    return _numpy_normalize(drawn)


def _numpy_normalize(h: Float32) -> Float32:
    h = h - h.mean(axis=-1, keepdims=True)
    h /= np.sqrt((h * h).mean(axis=-1, keepdims=True))
    return h


def _jax_run(compiled: Callable[[Any, Any], Any], initial: Any) -> Peer:
    """Calls with a new key each time, as a simulation would."""
    import jax

    key = jax.random.key(0)

    def run() -> Any:
        nonlocal key
        key, use = jax.random.split(key)
        return compiled(initial, use).block_until_ready()

    return run


def _jax_on_cpu() -> Any:
    import jax

    jax.config.update("jax_platforms", "cpu")
    return jax


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
