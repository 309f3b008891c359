"""Rotary position embedding (Su et al., 2021) and its scalings: linear, llama3, yarn (Peng et al., 2023)."""

from __future__ import annotations

import math
from typing import Any, Self

import msgspec
import torch

from astraflow.errors import ConfigError, UnknownNameError

SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""rope_type → the parameters it requires."""
_OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")}


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Base frequency and scaling."""

    theta: float = 10000.0
    type: str = "default"
    """A key of SCALINGS."""
    parameters: dict[str, Any] = {}
    """The scaling's own parameters under their Hugging Face names."""

    @classmethod
    def from_hf(cls, source: dict[str, Any]) -> Self:
        """Read `rope_parameters` (transformers ≥ 5) or `rope_theta` and `rope_scaling` of a config.json, not both."""
        if source.get("rope_parameters") and source.get("rope_scaling"):
            raise ConfigError("config.json has rope_parameters and rope_scaling, which are read differently: drop one")
        given = dict(source.get("rope_parameters") or source.get("rope_scaling") or {})
        theta = given.pop("rope_theta", source.get("rope_theta", 10000.0))
        kind = given.pop("rope_type", given.pop("type", "default"))
        given.pop("type", None)
        if kind not in SCALINGS:
            raise UnknownNameError("rope_type", str(kind), list(SCALINGS))
        if kind == "yarn" and "max_position_embeddings" in source:
            given.setdefault("original_max_position_embeddings", source["max_position_embeddings"])
        missing = sorted(set(SCALINGS[kind]) - given.keys())
        unknown = sorted(given.keys() - {*SCALINGS[kind], *_OPTIONAL.get(kind, ())})
        if kind == "default" and set(unknown) <= {"factor", "original_max_position_embeddings"}:
            unknown, given = [], {}
        if missing or unknown:
            raise ConfigError(
                f"config.json: rope_type {kind} lacks {missing or 'nothing'}, does not take {unknown or 'more'}"
            )
        optional = _OPTIONAL.get(kind, ())
        for name, value in {"rope_theta": theta, **given}.items():
            if not isinstance(value, int | float) and not (value is None and name in optional):
                raise ConfigError(f"config.json: {name} of the rotary embedding is {value!r}, expected a number")
        return cls(theta=float(theta), type=kind, parameters=given)

    def scaling(self) -> dict[str, Any] | None:
        """Return `rope_scaling` of a config.json; None for the default."""
        return None if self.type == "default" else {"rope_type": self.type, **self.parameters}


def rope_table(rope: RopeConfig, head_dim: int, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (cos_PD, sin_PD), float32, one row a position.

    The sign of rotate_half is folded into the first half of sin, so that with roll by half the head:
    rotated = x · cos + roll(x) · sin.
    """
    frequencies, scale = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def _frequencies(rope: RopeConfig, dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies float32 [dim/2] and the factor on cos and sin."""
    inverse = 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope.type == "linear":
        return inverse / rope.parameters["factor"], 1.0
    if rope.type == "llama3":
        return _llama3(inverse, rope.parameters), 1.0
    if rope.type == "yarn":
        return _yarn(inverse, rope, dim)
    return inverse, 1.0


def _llama3(inverse: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths are stretched by factor, short ones kept, those between interpolated."""
    factor, low, high = given["factor"], given["low_freq_factor"], given["high_freq_factor"]
    length = given["original_max_position_embeddings"]
    wavelength = 2 * math.pi / inverse
    smooth = ((length / wavelength - low) / (high - low)).clamp(0, 1)
    return torch.lerp(inverse / factor, inverse, smooth)


def _yarn(inverse: torch.Tensor, rope: RopeConfig, dim: int) -> tuple[torch.Tensor, float]:
    """NTK-by-parts interpolation (YaRN, §3.2) with its attention temperature (§3.4)."""
    given = rope.parameters
    factor, length = given["factor"], given["original_max_position_embeddings"]

    def dimension_of(rotations: float) -> float:
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(given.get("beta_fast") or 32), dimension_of(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    scale = given.get("attention_factor")
    if scale is None:
        over, under = given.get("mscale"), given.get("mscale_all_dim")
        scale = _mscale(factor, over) / _mscale(factor, under) if over and under else _mscale(factor, 1.0)
    return inverse / factor * ramp + inverse * (1 - ramp), float(scale)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
