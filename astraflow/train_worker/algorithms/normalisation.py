"""Means and standard deviations of groups, by group id and never by row stride (LAW 8).

Statistics count distinct samples: rows of one episode (branches, agents of one role) share a sample id and enter once,
with the mean of their values. Equal samples give exactly zero after the mean is subtracted, decided on the values and
not on a tiny standard deviation (LAW 9); where the standard deviation is zero nothing is divided.

What rows are divided by covers what they differ by: rows of one sample that were rewarded apart (a discounted chain of
turns) differ also where the samples' means hardly do. So no advantage is larger than √(samples × rows of a sample).
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
    """Of the samples' values, unbiased; 0 for a single sample."""
    spread: Tensor
    """What a row is divided by, ≥ std: the root of std² plus the mean over samples of their rows' variance. The same as
    std where rows of one sample have one value."""
    count: Tensor
    """Distinct samples."""
    sample_value: Tensor
    """Mean value of the row's own sample."""
    equal: Tensor
    """bool [M], no sample of the group is better than another: all have the same values, row for row, in any order."""


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
    nothing = values.new_zeros(len(group_of_sample))
    rows = nothing.index_add(0, sample_of_row, torch.ones_like(values))
    sample_value = nothing.index_add(0, sample_of_row, values) / rows
    within = nothing.index_add(0, sample_of_row, (values - sample_value[sample_of_row]).square()) / rows
    empty = values.new_zeros(len(groups))
    count = empty.index_add(0, group_of_sample, torch.ones_like(sample_value))
    mean = empty.index_add(0, group_of_sample, sample_value) / count
    squares = empty.index_add(0, group_of_sample, (sample_value - mean[group_of_sample]).square())
    variance = squares / (count - 1).clamp(min=1)
    total = variance + empty.index_add(0, group_of_sample, within) / count
    equal = _equal(values, group_of_row, sample_of_row, group_of_sample)
    return GroupStatistics(
        mean[group_of_row],
        torch.where(equal, empty, variance.sqrt())[group_of_row],
        torch.where(equal, empty, total.sqrt())[group_of_row],
        count[group_of_row],
        sample_value[sample_of_row],
        equal[group_of_row],
    )


def _equal(values: Tensor, group_of_row: Tensor, sample_of_row: Tensor, group_of_sample: Tensor) -> Tensor:
    """bool [G]: do the group's rows all have one value, or its samples the same values, in any order?"""
    groups = int(group_of_sample.max()) + 1
    empty = values.new_zeros(groups)
    low = empty.scatter_reduce(0, group_of_row, values, "amin", include_self=False)
    high = empty.scatter_reduce(0, group_of_row, values, "amax", include_self=False)
    order = values.argsort(stable=True)
    order = order[sample_of_row[order].argsort(stable=True)]  # by sample, each sample's values ascending
    sorted_values, sample = values[order], sample_of_row[order]
    rows = torch.bincount(sample_of_row, minlength=len(group_of_sample))
    start = rows.cumsum(0) - rows
    samples = torch.arange(len(group_of_sample), device=values.device)
    first = samples.new_full((groups,), len(samples)).scatter_reduce(0, group_of_sample, samples, "amin")
    model = first[group_of_sample]  # the sample that others of the group are compared with
    place = torch.arange(len(values), device=values.device) - start[sample]
    counterpart = (start[model][sample] + place).clamp(max=len(values) - 1)
    same = (rows == rows[model])[sample] & (sorted_values == sorted_values[counterpart])
    differs = samples.new_zeros(groups).index_add(0, group_of_sample[sample], (~same).to(samples.dtype))
    return (low == high) | (differs == 0)


def normalise(values_M: Tensor, group_id_M: Tensor, norm: NormConfig, sample_id_M: Tensor | None = None) -> Tensor:
    """Return (values − mean) / (spread + eps), float32 [M], with the statistics of each row's group or of all rows.

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
        spread = by_level[norm.std_level]().spread
        result = torch.where(spread > 0, result / (spread + norm.eps), result)
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
