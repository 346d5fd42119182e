"""Qwen3-VL's forward pass, on the weights of Hugging Face's model, with shapes that never change.

Hugging Face's own forward asks the CPU about shapes again and again, looks at pictures one after the other, and
launches some two thousand small kernels a token, which is where the time of plain `generate` goes. Here a layer is one
plain function of tensors: it is compiled once for all layers. There are two ways through it: `prefill` and `step` with
a cache of fixed capacity, which can be recorded as CUDA graphs, for generation; `read` whole sequences, for training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from actionpiece.nn.fused import GPU_OPTIONS
from actionpiece.policy.prompt import MERGE, patches

_PROGRAMS = 64  # shapes that a layer is compiled for


@dataclass
class Cache:
    """Keys and values of every layer, (layers, B, groups, capacity, head); open: (B, capacity), what may be read."""

    keys: Tensor
    values: Tensor
    open: Tensor


class _Block(NamedTuple):
    """The weights of a layer of the text model."""

    norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    query_norm: Tensor
    key_norm: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Forward:
    """The forward pass of a Qwen3-VL model `vlm` for pictures of `side` pixels. compiled: on a GPU, layers are."""

    def __init__(self, vlm: Any, *, side: int, compiled: bool) -> None:
        self.text, self.vision, self.compiled = vlm.model.language_model, vlm.model.visual, compiled
        self.config, self.look = vlm.config.text_config, vlm.config.vision_config
        self.image, self.side = vlm.config.image_token_id, side
        self.table: Tensor = self.text.embed_tokens.weight
        self.head: Tensor = vlm.get_output_embeddings().weight  # the same in small models, its own in large ones
        self._grid = _grid(side // self.look.patch_size, self.vision)
        self.blocks = [_weights(layer) for layer in self.text.layers]
        self._layer: Callable[..., Tensor] = _compiled(_layer) if compiled else _layer
        self._whole_layer: Callable[..., Tensor] = _compiled(_whole_layer) if compiled else _whole_layer
        self._vision_layer: Callable[..., Tensor] = _compiled(_vision_layer) if compiled else _vision_layer

    def cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache."""
        config, like = self.config, self.table
        shape = (len(self.blocks), batch, config.num_key_value_heads, capacity, config.head_dim)
        keys, values = like.new_zeros(shape), like.new_zeros(shape)
        return Cache(keys, values, torch.zeros(batch, capacity, dtype=torch.bool, device=like.device))

    def see(self, pictures: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features (B, V * tokens, width) of pictures (B, V, side, side, 3), and those that early layers are given."""
        look = self.look
        x = patches(pictures.flatten(0, 1), look.patch_size, look.temporal_patch_size)
        weight = self.vision.patch_embed.proj.weight.flatten(1)
        x = F.linear(x.to(weight.dtype), weight, self.vision.patch_embed.proj.bias)
        index, share, cos, sin = self._grid
        x = x + (self.vision.pos_embed(index) * share[..., None]).sum(1).to(x.dtype)
        given = []
        for number, block in enumerate(self.vision.blocks):
            x = self._vision_layer(x, cos, sin, _vision_weights(block), look.num_heads)
            if number in self.vision.deepstack_visual_indexes:
                place = self.vision.deepstack_visual_indexes.index(number)
                given.append(_merge(x, self.vision.deepstack_merger_list[place], norm_first=False))
        batch = pictures.shape[0]
        seen = _merge(x, self.vision.merger, norm_first=True)
        return seen.reshape(batch, -1, seen.shape[-1]), [g.reshape(batch, -1, g.shape[-1]) for g in given]

    def prefill(self, ids: Tensor, mask: Tensor, positions: Tensor, pictures: Tensor, cache: Cache) -> Tensor:
        """Read prompts (B, L) into the cache; hidden states (B, L, width) after the last norm."""
        x, given = self._embedded(ids, pictures)
        length = ids.shape[1]
        cache.open.zero_()
        cache.open[:, :length].copy_(mask)
        at = torch.arange(length, device=ids.device)
        return self._run(x, positions, at, cache, given)

    def read(self, ids: Tensor, positions: Tensor, pictures: Tensor, *, recompute: bool = False) -> Tensor:
        """Hidden states (B, L, width) of whole sequences, padded on the right, where nothing before looks at it.

        recompute: layers are run again in the backward pass instead of keeping what they computed.
        """
        x, given = self._embedded(ids, pictures)
        cos, sin = self.text.rotary_emb(x, positions)
        eps = self.config.rms_norm_eps
        for number, block in enumerate(self.blocks):
            if recompute:
                x = checkpoint(self._whole_layer, x, cos, sin, block, eps, use_reentrant=False)
            else:
                x = self._whole_layer(x, cos, sin, block, eps)
            if number < len(given):
                x = x + given[number]
        return _rms(x, self.text.norm.weight, eps)

    def _embedded(self, ids: Tensor, pictures: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Tokens and pictures as the first layer reads them, and what the layers after it are given of pictures."""
        x = F.embedding(ids, self.table)
        seen, given = self.see(pictures)
        here = ids == self.image
        # The n-th picture token of a row takes the n-th feature; static shapes, where Hugging Face scatters.
        index = (here.cumsum(1) - 1).clamp_min(0)[..., None].expand(-1, -1, x.shape[-1])
        x = torch.where(here[..., None], seen.gather(1, index).to(x.dtype), x)
        return x, [torch.where(here[..., None], g.gather(1, index), 0) for g in given]

    def step(self, ids: Tensor, positions: Tensor, at: Tensor, cache: Cache) -> Tensor:
        """Read tokens (B, n) at columns `at` (n,) of the cache; hidden states (B, n, width)."""
        cache.open.index_fill_(1, at, True)
        return self._run(F.embedding(ids, self.table), positions, at, cache, [])

    def logits(self, hidden: Tensor, rows: slice) -> Tensor:
        """Logits (B, n, rows) of some rows of the head, float32."""
        return F.linear(hidden, self.head[rows]).float()

    def _run(self, x: Tensor, positions: Tensor, at: Tensor, cache: Cache, given: list[Tensor]) -> Tensor:
        cos, sin = self.text.rotary_emb(x, positions)
        columns = torch.arange(cache.open.shape[1], device=x.device)
        visible = cache.open[:, None, :] & (columns <= at[:, None])  # (B, n, capacity)
        eps = self.config.rms_norm_eps
        for number, block in enumerate(self.blocks):
            x = self._layer(x, cos, sin, visible, at, cache.keys[number], cache.values[number], block, eps)
            if number < len(given):
                x = x + given[number]
        return _rms(x, self.text.norm.weight, eps)


class Learner(nn.Module):
    """A model as training sees it: sequences in, logits of some of their columns out."""

    def __init__(self, vlm: Any, *, side: int, compiled: bool, recompute: bool = False) -> None:
        super().__init__()
        self.vlm, self.recompute = vlm, recompute
        self.pass_through = Forward(vlm, side=side, compiled=compiled)

    def forward(self, ids: Tensor, positions: Tensor, pictures: Tensor, columns: Tensor) -> Tensor:
        """Logits (B, T, rows of the table) of the columns (B, T) of sequences padded on the right."""
        hidden = self.pass_through.read(ids, positions, pictures, recompute=self.recompute and self.training)
        kept = hidden.gather(1, columns[..., None].expand(-1, -1, hidden.shape[-1]))
        return F.linear(kept, self.pass_through.head)


def _weights(layer: Any) -> _Block:
    attention, mlp = layer.self_attn, layer.mlp
    modules = (
        layer.input_layernorm,
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.q_norm,
        attention.k_norm,
        attention.o_proj,
        layer.post_attention_layernorm,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    )
    return _Block(*(module.weight for module in modules))


def _layer(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    visible: Tensor,
    at: Tensor,
    keys: Tensor,
    values: Tensor,
    w: _Block,
    eps: float,
) -> Tensor:
    """One layer on x (B, n, width); its keys and values (B, G, capacity, head) get columns `at`."""
    batch, n = x.shape[:2]
    groups, head = keys.shape[1], keys.shape[3]
    q, k, v = _looked(x, cos, sin, w, eps)
    keys.index_copy_(2, at, k.transpose(1, 2))
    values.index_copy_(2, at, v.transpose(1, 2))
    q = q.view(batch, n, groups, -1, head).permute(0, 2, 3, 1, 4).flatten(2, 3)  # (B, G, heads per group * n, head)
    scores = (q @ keys.transpose(-1, -2)).unflatten(2, (-1, n)).float() * head**-0.5
    scores = scores.masked_fill(~visible[:, None, None], torch.finfo(torch.float32).min)
    read = scores.softmax(-1).to(x.dtype).flatten(2, 3) @ values
    return _thought(x, read.unflatten(2, (-1, n)).permute(0, 3, 1, 2, 4).reshape(batch, n, -1), w, eps)


def _whole_layer(x: Tensor, cos: Tensor, sin: Tensor, w: _Block, eps: float) -> Tensor:
    """One layer on whole sequences x (B, L, width): every token reads those up to itself."""
    q, k, v = (part.transpose(1, 2) for part in _looked(x, cos, sin, w, eps))
    read = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return _thought(x, read.transpose(1, 2).flatten(2), w, eps)


def _looked(x: Tensor, cos: Tensor, sin: Tensor, w: _Block, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, n, heads, head), keys and values (B, n, groups, head)."""
    normed, head = _rms(x, w.norm, eps), len(w.query_norm)
    q, k, v = (F.linear(normed, weight).unflatten(-1, (-1, head)) for weight in (w.query, w.key, w.value))
    return _turned(_rms(q, w.query_norm, eps), cos, sin), _turned(_rms(k, w.key_norm, eps), cos, sin), v


def _thought(x: Tensor, read: Tensor, w: _Block, eps: float) -> Tensor:
    """The rest of a layer, after what was read (B, n, heads * head)."""
    x = x + F.linear(read, w.out)
    normed = _rms(x, w.mlp_norm, eps)
    return x + F.linear(F.silu(F.linear(normed, w.gate)) * F.linear(normed, w.up), w.down)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()
    return weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, n, heads, head) turned by the angles (B, n, head)."""
    left, right = x.chunk(2, -1)
    return x * cos[:, :, None] + torch.cat((-right, left), -1) * sin[:, :, None]


def _vision_weights(block: Any) -> tuple[Tensor, ...]:
    modules = (block.norm1, block.attn.qkv, block.attn.proj, block.norm2, block.mlp.linear_fc1, block.mlp.linear_fc2)
    return tuple(tensor for module in modules for tensor in (module.weight, module.bias))


def _vision_layer(x: Tensor, cos: Tensor, sin: Tensor, w: tuple[Tensor, ...], heads: int) -> Tensor:
    """One layer on the patches (N, P, width) of N pictures, each by itself."""
    normed = F.layer_norm(x, x.shape[-1:], w[0], w[1], 1e-6)
    q, k, v = F.linear(normed, w[2], w[3]).unflatten(-1, (3, heads, -1)).unbind(2)
    q, k = (_turned(y.float(), cos[None], sin[None]).to(x.dtype).transpose(1, 2) for y in (q, k))
    read = F.scaled_dot_product_attention(q, k, v.transpose(1, 2)).transpose(1, 2).flatten(2)
    x = x + F.linear(read, w[4], w[5])
    normed = F.layer_norm(x, x.shape[-1:], w[6], w[7], 1e-6)
    return x + F.linear(F.gelu(F.linear(normed, w[8], w[9]), approximate="tanh"), w[10], w[11])


def _merge(x: Tensor, merger: Any, *, norm_first: bool) -> Tensor:
    """Four patches (they lie together) become one token; their norm is taken before or after they are joined."""
    shape = (*x.shape[:-2], -1, x.shape[-1] * MERGE**2)
    x = merger.norm(x).reshape(shape) if norm_first else merger.norm(x.reshape(shape))
    return merger.linear_fc2(F.gelu(merger.linear_fc1(x)))  # type: ignore[no-any-return]


def _grid(side: int, vision: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For side * side patches: the four learned positions next to each with their shares, and its angles.

    The learned positions are a square that is stretched over the picture, corners onto corners.
    """
    learned, head = vision.num_grid_per_side, vision.config.hidden_size // vision.config.num_heads
    axis = torch.arange(side).view(-1, MERGE)
    row = axis[:, None, :, None].expand(-1, side // MERGE, -1, MERGE).flatten()  # block by block
    column = axis[None, :, None, :].expand(side // MERGE, -1, MERGE, -1).flatten()
    place = torch.linspace(0, learned - 1, side)
    below = place.long()
    above, part = (below + 1).clamp_max(learned - 1), place - below
    index, share = [], []
    for y, y_share in ((below[row], 1 - part[row]), (above[row], part[row])):
        for x, x_share in ((below[column], 1 - part[column]), (above[column], part[column])):
            index.append(y * learned + x)
            share.append(y_share * x_share)
    rates = 10_000.0 ** (-torch.arange(0, head // 2, 2) / (head // 2))
    angles = torch.cat((row[:, None] * rates, column[:, None] * rates), -1)
    angles = torch.cat((angles, angles), -1)
    tables = torch.stack(index, 1), torch.stack(share, 1), angles.cos(), angles.sin()
    return tuple(table.to(vision.pos_embed.weight.device) for table in tables)  # type: ignore[return-value]


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # Every batch size and prompt length is a program of its own; beyond the limit torch would go on uncompiled.
    torch._dynamo.config.recompile_limit = max(_PROGRAMS, torch._dynamo.config.recompile_limit)
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=False, options=GPU_OPTIONS)
    return compiled
