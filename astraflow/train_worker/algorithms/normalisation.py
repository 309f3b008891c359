"""Means and standard deviations of groups, by group id and never by row stride (LAW 8).

Statistics count distinct samples: rows of one episode (branches, agents of one role) share a sample id and enter once,
with the mean of their values. Equal values give exactly zero after the mean is subtracted, decided on the values and
not on a tiny standard deviation (LAW 9); where the standard deviation is zero nothing is divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from astraflow.train_worker.config import NormConfig

Level = Literal["group", "batch", "none"]


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of each row's group, float64 [M] each but where said."""

    mean: Tensor
    std: Tensor
    """Unbiased; 0 for a single sample."""
    count: Tensor
    """Distinct samples."""
    sample_value: Tensor
    """Mean value of the row's own sample."""
    equal: Tensor
    """bool [M], all values of the group are the same number."""


def group_statistics(values_M: Tensor, group_id_M: Tensor, sample_id_M: Tensor | None = None) -> GroupStatistics:
    """Return the statistics of each row's group. `sample_id_M` None: every row is a sample of its own."""
    values = values_M.to(torch.float64)
    groups, group_of_row = torch.unique(group_id_M, return_inverse=True)
    if sample_id_M is None:
        sample_of_row = torch.arange(len(values), device=values.device)
        group_of_sample = group_of_row
    else:
        pairs = torch.stack([group_of_row, sample_id_M.to(torch.int64)], dim=1)
        samples, sample_of_row = torch.unique(pairs, dim=0, return_inverse=True)
        group_of_sample = samples[:, 0]
    rows = values.new_zeros(len(group_of_sample)).index_add(0, sample_of_row, torch.ones_like(values))
    sample_value = values.new_zeros(len(group_of_sample)).index_add(0, sample_of_row, values) / rows
    empty = values.new_zeros(len(groups))
    count = empty.index_add(0, group_of_sample, torch.ones_like(sample_value))
    mean = empty.index_add(0, group_of_sample, sample_value) / count
    squares = empty.index_add(0, group_of_sample, (sample_value - mean[group_of_sample]).square())
    low = empty.scatter_reduce(0, group_of_row, values, "amin", include_self=False)
    high = empty.scatter_reduce(0, group_of_row, values, "amax", include_self=False)
    equal = low == high
    std = torch.where(equal, empty, (squares / (count - 1).clamp(min=1)).sqrt())
    return GroupStatistics(
        mean[group_of_row], std[group_of_row], count[group_of_row], sample_value[sample_of_row], equal[group_of_row]
    )


def normalise(values_M: Tensor, group_id_M: Tensor, norm: NormConfig, sample_id_M: Tensor | None = None) -> Tensor:
    """Return (values − mean) / (std + eps), float32 [M], with the statistics of each row's group or of all rows.

    Group mean and std is GRPO (arXiv 2402.03300, sec. 4.1.2); the group mean without the sample itself is RLOO
    (arXiv 2402.14740, eq. 11). Without any other sample there is no baseline, and the result is 0.
    """
    values = values_M.to(torch.float64)
    if len(values) == 0:
        return values_M.to(torch.float32)
    by_level = {
        "group": lambda: group_statistics(values, group_id_M, sample_id_M),
        "batch": lambda: group_statistics(values, torch.zeros_like(group_id_M), _episodes(group_id_M, sample_id_M)),
    }
    result = values
    if norm.mean_level != "none":
        of = by_level[norm.mean_level]()
        baseline = of.mean
        if norm.mean_leave_one_out:
            others = (of.count - 1).clamp(min=1)
            baseline = (of.mean * of.count - of.sample_value) / others
        result = torch.where(of.equal | (of.count < 2), 0.0, values - baseline)
    if norm.std_level != "none":
        std = by_level[norm.std_level]().std
        result = torch.where(std > 0, result / (std + norm.eps), result)
    return result.to(torch.float32)


def normalise_advantages(advantages_T: Tensor, mask_T: Tensor, group_id_T: Tensor, norm: NormConfig) -> Tensor:
    """Normalise over sampled tokens, float32 [T]; tokens outside the mask stay 0 and enter no statistic."""
    mask = mask_T.bool()
    out = torch.zeros_like(advantages_T, dtype=torch.float32)
    out[mask] = normalise(advantages_T[mask], group_id_T[mask], norm)
    return out


def _episodes(group_id_M: Tensor, sample_id_M: Tensor | None) -> Tensor | None:
    """Number the distinct (group, sample) pairs: over a whole batch, a sample of two groups counts in each."""
    if sample_id_M is None:
        return None
    pairs = torch.stack([group_id_M.to(torch.int64), sample_id_M.to(torch.int64)], dim=1)
    numbers: Tensor = torch.unique(pairs, dim=0, return_inverse=True)[1]
    return numbers
