"""Pairs of bfloat16 versions for measuring: a transformer's tensors, normal weights, changes of one last-place unit.

Positions are drawn with a probability that halves with each exponent, as an optimiser's do: an update of fixed size
moves small weights over a rounding boundary more often than large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import buffer_length, lay_out

WIDTH = 1024
VOCAB = 32_768
STD = 0.02


@dataclass
class Pair:
    """A version and the next."""

    base: Manifest
    target: Manifest
    before: memoryview
    after: memoryview
    changed: int
    """Elements that differ."""

    @property
    def nbytes(self) -> int:
        return len(self.after)


def transformer_layout(nbytes: int, dtype: str = "bfloat16") -> tuple[TensorEntry, ...]:
    """An embedding and as many layers of matrices and norms as fill `nbytes`; less than a layer more."""
    size = 2 if dtype == "bfloat16" else 4
    vocab = min(VOCAB, max(1, nbytes // (4 * WIDTH * size)))
    tensors: list[tuple[str, tuple[int, ...], str]] = [("model.embed_tokens.weight", (vocab, WIDTH), dtype)]
    total, layer = vocab * WIDTH * size, 0
    while total < nbytes:
        for name, shape in (
            ("self_attn.qkv", (2 * WIDTH, WIDTH)),
            ("self_attn.o_proj", (WIDTH, WIDTH)),
            ("mlp.gate_up", (2 * WIDTH, WIDTH)),
            ("mlp.down_proj", (WIDTH, WIDTH)),
            ("norm", (WIDTH,)),
        ):
            tensors.append((f"model.layers.{layer}.{name}.weight", shape, dtype))
            total += int(np.prod(shape)) * size
        layer += 1
    return lay_out(tensors)


def normal_weights(layout: tuple[TensorEntry, ...], seed: int = 0) -> np.ndarray:
    """float32 [elements of the buffer], normal; the paddings between tensors hold some too, which nobody reads."""
    elements = buffer_length(layout) // (2 if layout[0].dtype == "bfloat16" else 4)
    return STD * np.random.default_rng(seed).standard_normal(elements, np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 → bfloat16 bits (u16), towards zero."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def make_pair(nbytes: int, density: float, seed: int = 0) -> Pair:
    """Two versions of about `nbytes` that differ in about `density` of their elements."""
    layout = transformer_layout(nbytes)
    before = to_bfloat16(normal_weights(layout, seed))
    after = before.copy()
    changed = change(after, density, seed + 1)
    views = memoryview(before.view(np.uint8).data), memoryview(after.view(np.uint8).data)
    return Pair(
        build_manifest("bench", 0, layout, views[0]),
        build_manifest("bench", 1, layout, views[1]),
        *views,
        changed,
    )


def change(bits: np.ndarray, density: float, seed: int) -> int:
    """Move about `density` of bfloat16 elements by one unit in the last place; returns how many, piece by piece."""
    rng = np.random.default_rng(seed)
    changed = 0
    for start in range(0, len(bits), 2**22):
        part = bits[start : start + 2**22]
        exponent = ((part >> 7) & 0xFF).astype(np.float32)
        probability = np.exp2(np.clip(exponent.max() - exponent, 0, 6))
        for _ in range(6):  # what would be certain is cut off and made up for elsewhere
            probability = np.minimum(probability * (density / probability.mean()), 1.0)
        chosen = rng.random(len(part), np.float32) < probability
        part[chosen] += np.where(rng.random(int(chosen.sum())) < 0.5, 1, 0xFFFF).astype(np.uint16)
        changed += int(chosen.sum())
    return changed
