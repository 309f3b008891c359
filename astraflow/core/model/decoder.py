"""One decoder for the trainer and the embedded engine: Llama, Qwen2 and Qwen3.

Tokens of all sequences lie in one packed dimension T; only attention knows where a sequence begins, and the caller
gives it (`attend`): packed causal attention in training, a KV cache in the engine. So both run the same arithmetic.
Parameters carry Hugging Face's names. Axes: T tokens, C hidden, H query heads, K key/value heads, D head, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from astraflow.core.model.config import ModelConfig
from astraflow.core.model.norm import rms_norm
from astraflow.core.model.rope import rope_table
from astraflow.core.model.swiglu import swiglu

JOINED_MAX = 2**18
"""Elements up to which weights that are not stacked are joined in each pass, which saves products. The backward pass
holds the joint copies of all layers: of larger ones they would be half a model."""


class Attend(Protocol):
    """Attention of one layer over whatever context the caller keeps."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, /) -> Tensor:
        """Return [T, H, D]; queries and keys are already rotated."""


class Decoder(nn.Module):
    """`decoder(input_ids_T, positions_T, attend)` gives hidden states, `decoder.logits(hidden)` their logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head: nn.Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        cos, sin = rope_table(config.rope, config.head_dim, config.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, input_ids_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states [T, C] after the final norm. Positions are below max_position_embeddings."""
        cos = self.cos.index_select(0, positions_T).unsqueeze(1)
        sin = self.sin.index_select(0, positions_T).unsqueeze(1)
        x = F.embedding(input_ids_T, self.model.embed_tokens.weight)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, index, attend)
        return rms_norm(x, self.model.norm.weight, self.config.rms_norm_eps)

    def logits(self, hidden_TC: Tensor) -> Tensor:
        """Return the logits [T, V] of hidden states, in the parameters' dtype."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden_TC, head.weight)

    def stack_weights(self) -> None:
        """Lay q, k, v and gate, up of each layer end to end in memory, for inference.

        The named parameters become views of the joint storage: writing them in place by their Hugging Face names
        changes what is computed. Afterwards the decoder takes no gradients.
        """
        self.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, Attention | MLP):
                module.stack()


class Backbone(nn.Module):
    """Everything but the output layer; named `model` in Hugging Face's layout."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size)


class Layer(nn.Module):
    """Pre-norm attention and MLP on a residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size)

    def forward(self, x_TC: Tensor, cos: Tensor, sin: Tensor, index: int, attend: Attend) -> Tensor:
        x_TC = self.self_attn(x_TC, rms_norm(x_TC, self.input_layernorm.weight, self.eps), cos, sin, index, attend)
        x_TC = self.mlp(x_TC, rms_norm(x_TC, self.post_attention_layernorm.weight, self.eps))
        return x_TC  # noqa: RET504 - a Module call is untyped


class Attention(nn.Module):
    """Projections, optional norm of queries and keys, RoPE; the attention itself is the caller's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps = config.rms_norm_eps
        hidden, width, kv_width = config.hidden_size, self.heads * self.dim, self.kv_heads * self.dim
        self.q_proj = nn.Linear(hidden, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, hidden, bias=config.output_bias)
        self.q_norm = RMSNorm(self.dim) if config.qk_norm else None
        self.k_norm = RMSNorm(self.dim) if config.qk_norm else None
        self._stacked: tuple[Tensor, Tensor | None] | None = None

    def forward(self, x_TC: Tensor, h_TC: Tensor, cos: Tensor, sin: Tensor, index: int, attend: Attend) -> Tensor:
        """Return x + attention(h)."""
        joint = _linears(h_TC, self._stacked, self.q_proj, self.k_proj, self.v_proj)
        qkv = joint.view(len(h_TC), self.heads + 2 * self.kv_heads, self.dim)
        qk, v_TKD = qkv.split_with_sizes([self.heads + self.kv_heads, self.kv_heads], 1)
        if self.q_norm is not None and self.k_norm is not None:
            scale = torch.cat([self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)])
            qk = rms_norm(qk, scale, self.eps)
        qk = torch.addcmul(qk * cos, qk.roll(self.dim // 2, -1), sin)
        q_THD, k_TKD = qk.split_with_sizes([self.heads, self.kv_heads], 1)
        return _add_linear(x_TC, attend(index, q_THD, k_TKD, v_TKD).flatten(1), self.o_proj)

    def stack(self) -> None:
        self._stacked = _stack(self.q_proj, self.k_proj, self.v_proj)


class MLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=config.mlp_bias)
        self._stacked: tuple[Tensor, Tensor | None] | None = None

    def forward(self, x_TC: Tensor, h_TC: Tensor) -> Tensor:
        """Return x + mlp(h)."""
        return _add_linear(x_TC, swiglu(_linears(h_TC, self._stacked, self.gate_proj, self.up_proj)), self.down_proj)

    def stack(self) -> None:
        self._stacked = _stack(self.gate_proj, self.up_proj)


class RMSNorm(nn.Module):
    """Holds a norm's weight under its name; `rms_norm` applies it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def _add_linear(x: Tensor, h: Tensor, linear: nn.Linear) -> Tensor:
    """Return x + linear(h), the sum inside the product where there is no bias."""
    if linear.bias is None:
        return torch.addmm(x, h, linear.weight.t())
    return x + F.linear(h, linear.weight, linear.bias)


def _linears(h: Tensor, stacked: tuple[Tensor, Tensor | None] | None, *linears: nn.Linear) -> Tensor:
    """Outputs of linears with one input, side by side."""
    if stacked is None and sum(linear.weight.numel() for linear in linears) > JOINED_MAX:
        return torch.cat([F.linear(h, linear.weight, linear.bias) for linear in linears], -1)
    weight, bias = stacked or _joined(*linears)
    return F.linear(h, weight, bias)


def _joined(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linears with one input, so that they are one product."""
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    weights: list[Tensor] = [linear.weight for linear in linears]
    return torch.cat(weights), torch.cat(biases) if biases else None


@torch.no_grad()
def _stack(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """As `_joined`, and the linears' own parameters become views of it."""
    weight, bias = _joined(*linears)
    sizes = [linear.out_features for linear in linears]
    for linear, rows in zip(linears, weight.split_with_sizes(sizes), strict=True):
        linear.weight.data = rows
    if bias is not None:
        for linear, rows in zip(linears, bias.split_with_sizes(sizes), strict=True):
            linear.bias.data = rows
    return weight, bias
