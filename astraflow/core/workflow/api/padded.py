"""The border of the public workflow contract: right-padded arrays in, checked records out.

LAW 3: ids, mask, logprobs and versions have one length; what breaks this is a DataError that names row and turn.
LAW 4: what is padding and what was sampled comes from attention_mask and loss_mask, never from token values.
LAW 5: why a generation ended is what the engine said (`StopLog`), never inferred from widths.
Numbers are looked at before they become what a record holds: nothing wraps round, is cut or is rounded on the way.
Torch tensors are accepted by duck typing; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from astraflow.core.data import (
    Failed,
    ModelRequest,
    ModelResponse,
    StopReason,
    Trajectory,
    Turn,
    Value,
)
from astraflow.core.data.trajectory import INT32_MAX, Episode, EpisodeResult
from astraflow.core.workflow.api.engine_api import InferenceEngine
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.reward.outcome import to_reward
from astraflow.errors import DataError, boundary

TOKEN_KEYS = ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask")
"""[n, L] each."""
ROW_KEYS = ("rewards", "model_ids", "begin_of_trajectory")
"""[n] each; the last two are optional."""
EXACT_BELOW = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}
"""Whole numbers from here on are rounded by a floating type before anybody sees them."""


def as_array(value: Any) -> np.ndarray:
    """Return a numpy array of an array, a (nested) list or a torch tensor (bfloat16 becomes float32)."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    return np.asarray(value)


def concat_padded_tensors(tensor_dicts: Sequence[Mapping[str, Any]], pad_value: float = 0.0) -> dict[str, np.ndarray]:
    """Stack padded dicts of one form along the first axis, right-padding [n, L] arrays to the longest L.

    Padding is `pad_value`, except in attention_mask, where it is False. Raises DataError where the dicts' keys differ.
    """
    if not tensor_dicts:
        raise DataError("concat_padded_tensors needs at least one dict")
    keys = list(tensor_dicts[0])
    for number, tensors in enumerate(tensor_dicts):
        if set(tensors) != set(keys):
            raise DataError(f"padded dict {number} has keys {sorted(tensors)}, the first has {sorted(keys)}")
    return {
        key: _concat([as_array(tensors[key]) for tensors in tensor_dicts], 0 if key == "attention_mask" else pad_value)
        for key in keys
    }


def pad_episodes(episodes: Iterable[EpisodeResult]) -> dict[str, np.ndarray] | None:
    """The public form of finished episodes, a row a trajectory; failed ones are left out, None where all failed.

    An Invalid reward is NaN. begin_of_trajectory is there only where an episode has several trajectories.
    """
    finished = [episode for episode in episodes if isinstance(episode, Episode)]
    rows = [trajectory for episode in finished for trajectory in episode.trajectories]
    if not rows:
        return None
    lengths = np.array([trajectory.length for trajectory in rows])
    attention = np.arange(lengths.max())[None, :] < lengths[:, None]

    def padded(field: str, dtype: Any) -> np.ndarray:
        out = np.zeros(attention.shape, dtype)
        out[attention] = np.concatenate([getattr(trajectory.arrays, field) for trajectory in rows])
        return out

    arrays = {
        "input_ids": padded("ids", np.int32),
        "loss_mask": padded("mask", np.int32),
        "logprobs": padded("logprobs", np.float32),
        "versions": padded("versions", np.int32),
        "attention_mask": attention,
        "rewards": np.array([t.reward.value if isinstance(t.reward, Value) else np.nan for t in rows], np.float32),
    }
    if len(rows) > len(finished):
        begins = [index == 0 for episode in finished for index in range(len(episode.trajectories))]
        arrays["begin_of_trajectory"] = np.array(begins)
    return arrays


def episodes_of(padded: Mapping[str, Any], group: GroupTask, stops: StopLog | None = None) -> tuple[EpisodeResult, ...]:
    """Turn a workflow's padded arrays into the group's episodes; DataError names the key, row or turn that is wrong.

    A row is a sample, except where begin_of_trajectory is False: it continues (a branch, another agent) the sample of
    the row before. Where a workflow returns fewer samples than were asked for, the rest is Failed("cut").
    """
    arrays = _known_arrays(padded)
    n, width = arrays["input_ids"].shape
    begins = arrays.get("begin_of_trajectory", np.ones(n, bool))
    samples = np.cumsum(begins) - 1
    if n == 0 or not begins[0]:
        raise DataError("padded arrays: there must be a row, and the first must begin a trajectory")
    if samples[-1] >= group.n_samples:
        raise DataError(f"padded arrays hold {samples[-1] + 1} samples, {group.n_samples} were asked for")
    attention = arrays["attention_mask"]
    lengths = attention.sum(1)
    if (attention != (np.arange(width)[None, :] < lengths[:, None])).any():
        row = int((attention != (np.arange(width)[None, :] < lengths[:, None])).any(1).argmax())
        raise DataError(f"row {row}: attention_mask is not right-padded")
    trajectories: list[list[Trajectory]] = [[] for _ in range(samples[-1] + 1)]
    for row in range(n):
        turns = _turns(arrays, row, int(lengths[row]))
        trajectory = Trajectory(
            task_id=group.task_id,
            group_id=group.group_id,
            sample_id=group.sample_id(int(samples[row])),
            model_id=_model_id(arrays, row, group.model_id),
            turns=turns,
            reward=to_reward(arrays["rewards"][row]),
            stop=stops.of(turns) if stops is not None else StopReason.STOP,
        )
        trajectories[samples[row]].append(trajectory.check())
    episodes: list[EpisodeResult] = [Episode(trajectories=tuple(each)) for each in trajectories]
    missing = group.n_samples - len(episodes)
    cut = Failed("cut", f"the workflow returned {len(episodes)} of {group.n_samples} samples")
    return tuple(episodes + [cut] * missing)


class StopLog:
    """An engine view that remembers why each generation ended, for workflows whose arrays cannot say so."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._stops: dict[bytes, StopReason] = {}

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        response = await self._engine.agenerate(request)
        self._stops[response.output_tokens.astype(np.int32).tobytes()] = response.stop_reason
        return response

    def get_version(self) -> int:
        return self._engine.get_version()

    @asynccontextmanager
    async def managed_session(self) -> AsyncIterator[StopLog]:
        async with self._engine.managed_session() as session:
            yield self._sharing(session)

    def __getitem__(self, model_id: str) -> StopLog:
        return self._sharing(self._engine[model_id])

    def of(self, turns: Sequence[Turn]) -> StopReason:
        """Why the last generation of a trajectory ended; STOP where its tokens are not the engine's as they stand."""
        for turn in reversed(turns):
            sampled = turn.ids[turn.mask.astype(bool)]
            if sampled.size:
                return self._stops.get(sampled.tobytes(), StopReason.STOP)
        return StopReason.STOP

    def _sharing(self, engine: InferenceEngine) -> StopLog:
        log = StopLog(engine)
        log._stops = self._stops
        return log


def _concat(arrays: list[np.ndarray], pad_value: float) -> np.ndarray:
    if arrays[0].ndim < 2:
        return np.concatenate([np.atleast_1d(array) for array in arrays])
    width = max(array.shape[1] for array in arrays)
    out = np.full((sum(len(array) for array in arrays), width, *arrays[0].shape[2:]), pad_value, arrays[0].dtype)
    row = 0
    for array in arrays:
        out[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return out


def _known_arrays(padded: Mapping[str, Any]) -> dict[str, np.ndarray]:
    known = (*TOKEN_KEYS, *ROW_KEYS)
    missing = [key for key in (*TOKEN_KEYS, "rewards") if key not in padded]
    unknown = sorted(set(padded) - set(known))
    if missing or unknown:
        what = f"lack {', '.join(missing)}" if missing else f"hold {', '.join(unknown)}, which nothing consumes"
        raise DataError(f"padded arrays {what}; known keys: {', '.join(known)}")
    arrays = {}
    for key, value in padded.items():
        with boundary(DataError, f"padded arrays: {key} is not an array of numbers or names"):
            arrays[key] = as_array(value)
    shape = arrays["input_ids"].shape
    if len(shape) != 2:
        raise DataError(f"padded arrays: input_ids has shape {shape}, expected [n, L]")
    for key, array in arrays.items():
        expected = shape if key in TOKEN_KEYS else shape[:1]
        if array.shape != expected:
            raise DataError(f"padded arrays: {key} has shape {array.shape}, expected {expected} from input_ids")
    attention = arrays["attention_mask"] = _flags(arrays["attention_mask"], "attention_mask")
    if "begin_of_trajectory" in arrays:
        arrays["begin_of_trajectory"] = _flags(arrays["begin_of_trajectory"], "begin_of_trajectory")
    sampled = arrays["loss_mask"] = _flags(arrays["loss_mask"], "loss_mask")
    # what stands in the padding, and of versions where nothing was sampled, has no meaning (public workflows write 0
    # or -1 there)
    for key, matters, least in (("input_ids", attention, 0), ("versions", attention & sampled, -1)):
        exact = EXACT_BELOW.get(str(getattr(padded[key], "dtype", arrays[key].dtype)).removeprefix("torch."))
        arrays[key] = _whole(arrays[key], matters, key, least, exact)
    if arrays["logprobs"].dtype.kind not in "iuf":
        raise DataError(f"padded arrays: logprobs has dtype {arrays['logprobs'].dtype}, expected real numbers")
    return arrays


def _flags(array: np.ndarray, key: str) -> np.ndarray:
    """Booleans of an array of 0 and 1."""
    if array.dtype.kind not in "biuf":
        raise DataError(f"padded arrays: {key} has dtype {array.dtype}, expected 0 and 1")
    wrong = (array != 0) & (array != 1)
    if wrong.any():
        raise DataError(f"{_first(wrong)}: {key} holds {array[wrong][0]}, expected 0 or 1")
    return array.astype(bool)


def _whole(array: np.ndarray, matters: np.ndarray, key: str, least: int, exact: int | None) -> np.ndarray:
    """int32 of whole numbers up to 2^31 − 1, 0 where they do not matter; `exact` bounds those of a floating type."""
    if array.dtype.kind not in "iuf":
        raise DataError(f"padded arrays: {key} has dtype {array.dtype}, expected whole numbers")
    floating = array.dtype.kind == "f"
    if floating:
        array = array.astype(np.float64)  # narrower ones would round the bounds that they are compared with
    wrong = ~((array >= least) & (array <= INT32_MAX))
    if floating:
        wrong |= ~(array == np.floor(array)) | ~(array < (exact or 0))
    wrong &= matters
    if wrong.any():
        most = min(INT32_MAX, exact - 1) if exact else INT32_MAX
        raise DataError(f"{_first(wrong)}: {key} holds {array[wrong][0]}, expected a whole number of {least} to {most}")
    return np.where(matters, array, 0).astype(np.int32)


def _first(wrong: np.ndarray) -> str:
    """Say where the first wrong value is."""
    row, *place = np.argwhere(wrong)[0].tolist()
    return f"row {row}, token {place[0]}" if place else f"row {row}"


def _turns(arrays: Mapping[str, np.ndarray], row: int, length: int) -> tuple[Turn, ...]:
    """Cut a row before each context that follows sampled tokens."""
    sampled = arrays["loss_mask"][row]
    if sampled[length:].any():
        raise DataError(f"row {row}: loss_mask marks padding as sampled")
    sampled = sampled[:length]
    mask = sampled.astype(np.uint8)
    ids = arrays["input_ids"][row, :length]
    with np.errstate(over="ignore"):  # what float32 does not hold becomes infinite, which the check names
        logprobs = np.where(sampled, arrays["logprobs"][row, :length], 0).astype(np.float32)
    versions = np.where(sampled, arrays["versions"][row, :length], -1).astype(np.int32)
    starts = [0, *(np.flatnonzero(sampled[:-1] & ~sampled[1:]) + 1).tolist(), length]
    turns = []
    for number, (start, end) in enumerate(pairwise(starts)):
        cut = slice(start, end)
        turn = Turn(ids=ids[cut], mask=mask[cut], logprobs=logprobs[cut], versions=versions[cut])
        turns.append(turn.check(f"row {row}, turn {number}"))
    return tuple(turns)


def _model_id(arrays: Mapping[str, np.ndarray], row: int, default: str) -> str:
    """Names stand as they are; a number k is the k-th policy under its customary name."""
    if "model_ids" not in arrays:
        return default
    value = arrays["model_ids"][row]
    kind = arrays["model_ids"].dtype.kind
    if kind not in "iuUO":
        raise DataError(f"row {row}: model_ids holds {value!r:.60}, expected a name or a policy's number")
    return f"model{value}" if kind in "iu" else str(value)
