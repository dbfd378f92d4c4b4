"""Attention whose projections are implicit layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bnmc.torch.implicit_modules import ImplicitLinear
from bnmc.torch.models import torch


class ImplicitAttention(torch.nn.Module):  # type: ignore[misc]
    """Attention with the arguments and outputs of ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    attention : torch.nn.MultiheadAttention
        Without ``add_bias_kv`` and ``add_zero_attn``.
    projections : sequence of ImplicitLinear
        Those of query, key and value.  One layer in their place has the outputs of all three: it is
        asked once for an input that they share.
    out_proj : ImplicitLinear
        The projection of the heads.
    """

    #: Tells ``torch.nn.TransformerEncoder`` to call this module, not to read its weights.
    in_proj_weight = in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self, attention: Any, projections: Sequence[ImplicitLinear], out_proj: ImplicitLinear
    ) -> None:
        super().__init__()
        self.projections, self.out_proj = torch.nn.ModuleList(projections), out_proj
        for name in (
            "embed_dim",
            "kdim",
            "vdim",
            "num_heads",
            "head_dim",
            "dropout",
            "batch_first",
        ):
            setattr(self, name, getattr(attention, name))

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        """Return the output, and the weights of the attention or None."""
        batched = query.ndim == 3
        q, k, v = (self._heads(x, batched) for x in self._projected(query, key, value))
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            logits = q @ k.mT / math.sqrt(self.head_dim)
            weights = torch.softmax(logits if mask is None else logits + mask, -1)
            weights = torch.nn.functional.dropout(weights, dropout)
            y = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        else:
            attend = torch.nn.functional.scaled_dot_product_attention
            y = attend(q, k, v, attn_mask=mask, dropout_p=dropout)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if not batched:
            return y[0], weights
        return y if self.batch_first else y.transpose(0, 1), weights

    def _projected(self, *inputs: Any) -> list[Any]:
        """Return the projections of query, key and value."""
        if len(self.projections) == 3:
            return [layer(x) for layer, x in zip(self.projections, inputs, strict=True)]
        different = {id(x): x for x in inputs}
        outputs = {name: self.projections[0](x).chunk(3, -1) for name, x in different.items()}
        return [outputs[id(x)][part] for part, x in enumerate(inputs)]

    def _heads(self, x: Any, batched: bool) -> Any:
        """Return a projection as (samples, heads, positions, features)."""
        if not batched:
            x = x[None]
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _mask(self, attn_mask: Any, padding: Any, q: Any) -> Any:
        """Return what is added to the logits, or None."""
        mask = _added(attn_mask, q)
        if mask is not None and mask.ndim == 3:
            mask = mask.unflatten(0, (-1, self.num_heads))
        padding = _added(padding, q)
        if padding is None:
            return mask
        padding = padding.reshape(-1, 1, 1, padding.shape[-1])
        return padding if mask is None else mask + padding


def _added(mask: Any, q: Any) -> Any:
    """Return a mask as numbers: −∞ where a mask of truth values is true."""
    if mask is None or mask.dtype != torch.bool:
        return mask if mask is None else mask.to(q.dtype)
    return torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask, -torch.inf)
