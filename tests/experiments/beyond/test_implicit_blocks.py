"""Blocks of a transformer beside PyTorch with the weights of their matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bnmc.experiments.beyond.implicit_blocks import Block

torch = pytest.importorskip("torch")


def test_a_block_forward_and_back():
    """All weights are decided after the passes; matrices keep float32."""
    width, heads, tokens = 12, 3, 5
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, width, tokens))
    block = Block(width, heads, lambda columns: 2.0 * columns**-0.5, 0.5, rng)
    y, gradient = block.forward(x), block.backward(g)
    weights = [torch.from_numpy(matrix.dense()).double() for matrix in block.matrices]
    sizes = [float(weight.std()) * weight.shape[1] ** 0.5 for weight in weights]
    # Relative standard deviations are at most .06, those of 144 entries.
    assert_allclose(sizes, [2.0, 1.0, 2.0, 1.0], rtol=0.3)

    qkv, out, up, down = weights
    state = torch.from_numpy(x.T.copy()).requires_grad_()
    norm = torch.nn.functional.layer_norm
    parts = (norm(state, (width,)) @ qkv.T).reshape(tokens, 3, heads, -1).permute(1, 2, 0, 3)
    mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
    middle = state + mixed.transpose(0, 1).reshape(tokens, width) @ out.T
    hidden = torch.nn.functional.gelu(norm(middle, (width,)) @ up.T)
    expected = middle + hidden @ down.T
    expected.backward(torch.from_numpy(g.T.copy()))
    assert_allclose(y.T, expected.detach(), rtol=1e-4, atol=1e-5)
    assert_allclose(gradient.T, state.grad, rtol=1e-4, atol=1e-5)
    assert_allclose(block.attention.sum(-1), 1.0)
