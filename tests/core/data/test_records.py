import msgspec
import numpy as np
import pytest

from astraflow.core.data import (
    Batch,
    GenerationHyperparameters,
    Group,
    Invalid,
    Manifest,
    ModelRequest,
    ModelResponse,
    StopReason,
    TensorEntry,
    Trajectory,
    Turn,
    Value,
    decode,
    encode,
)
from astraflow.core.data.trajectory import LARGEST_REWARD, Episode, Failed, GroupResult
from astraflow.errors import DataError


def response(n: int, version: int = 1) -> ModelResponse:
    return ModelResponse(
        input_tokens=np.arange(2, dtype=np.int32),
        output_tokens=np.arange(n, dtype=np.int32),
        output_logprobs=np.full(n, -0.5, np.float32),
        output_versions=np.full(n, version, np.int32),
        stop_reason=StopReason.STOP,
    )


def trajectory(sample: int = 0, prompt: int = 2, sampled: int = 3, reward: float = 1.0, version: int = 1) -> Trajectory:
    turn = Turn.of(np.zeros(prompt, np.int32), response(sampled, version))
    return Trajectory(
        task_id="t", group_id=7, sample_id=sample, turns=(turn,), reward=Value(reward), stop=StopReason.STOP
    )


def group(*trajectories: Trajectory, group_id: int = 7) -> Group:
    return Group(group_id=group_id, task_id="t", prompt_id=0, model_id="m", trajectories=trajectories)


def test_a_turn_joins_context_and_response() -> None:
    turn = Turn.of(np.array([5, 6], np.int32), response(2)).check()
    assert turn.ids.tolist() == [5, 6, 0, 1]
    assert turn.mask.tolist() == [0, 0, 1, 1]
    assert turn.versions.tolist() == [-1, -1, 1, 1]
    assert turn.logprobs.tolist() == [0, 0, -0.5, -0.5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": np.zeros(4, np.int32)}, "differ in shape"),
        ({"logprobs": np.zeros(5, np.float64)[:2]}, "differ in shape"),
        ({"mask": np.array([0, 0, 1, 1, 2], np.uint8)}, "mask holds 0 to 2, expected 0 to 1"),
        ({"logprobs": np.array([0, 0, np.nan, 0, 0], np.float32)}, "logprob"),
        ({"logprobs": np.array([0, 0, 0.5, 0, 0], np.float32)}, "logprob"),
        ({"versions": np.array([-1, -1, 1, -1, 1], np.int32)}, "versions"),
        ({"versions": np.array([0, -1, 1, 1, 1], np.int32)}, "versions"),
        ({"ids": np.zeros(5, np.float32)}, "dtype"),
        ({"ids": np.array([1, 2, -1, 4, 5], np.int32)}, "ids holds -1"),
        ({"ids": np.array([0, 0, 0, 0, -7], np.int32)}, "ids holds -7 to 0, expected 0 to"),
        ({"ids": np.array([0, 0, 0, 0, 2**31], np.int64)}, "ids holds 0 to 2147483648, expected"),
        ({"ids": np.array([0, 0, 0, 0, 2**64 - 1], np.uint64)}, "ids holds 0 to 18446744073709551615"),
        ({"mask": np.array([0, 0, -1, 1, 1], np.int8)}, "mask holds -1 to 1"),
        ({"versions": np.array([-1, -1, 1, 1, 2**31], np.int64)}, "versions holds -1 to 2147483648"),
        ({"logprobs": np.array([0, 0, -1e300, 0, 0])}, "logprob is not .* that float32 holds"),
        ({"logprobs": np.array([0, -np.inf, 0, 0, 0], np.float32)}, "logprobs"),
        ({"logprobs": np.array([0, -0.5, 0, 0, 0], np.float32)}, "logprobs must be 0 on tokens that were not sampled"),
    ],
)
def test_a_misaligned_turn_is_named(change: dict[str, np.ndarray], words: str) -> None:
    turn = trajectory().turns[0]
    broken = Turn(**{**{f: getattr(turn, f) for f in Turn.__struct_fields__}, **change})
    bad = Trajectory(task_id="t9", group_id=1, sample_id=2, turns=(turn, broken), reward=Value(1), stop=StopReason.STOP)
    with pytest.raises(DataError, match=words) as caught:
        bad.check()
    assert "turn 1 of trajectory 2 of task t9" in str(caught.value)


@pytest.mark.parametrize("sample", [-1, 2**63, "7", None])
def test_a_sample_has_a_number_that_a_batch_holds(sample: int) -> None:
    with pytest.raises(DataError, match=r"of task t: sample_id is not a number of 0 to 9223372036854775807"):
        trajectory(sample).check()


def test_statistics_of_the_largest_rewards_are_finite() -> None:
    rewards = np.array([LARGEST_REWARD, -LARGEST_REWARD] * 2048, np.float32)
    trajectory(reward=float(rewards[0])).check()
    assert np.isfinite([rewards.mean(), rewards.var(dtype=np.float32), rewards.std(dtype=np.float32)]).all()


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e30, -2e15])
def test_a_reward_is_a_finite_number(reward: float) -> None:
    with pytest.raises(DataError, match="reward"):
        trajectory(reward=reward).check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reward": 1.0}, r"reward is a float \(1.0\), expected Value"),
        ({"reward": Value("1")}, "reward is 1, expected a number within"),  # type: ignore[arg-type]
        ({"reward": None}, "reward is a NoneType"),
        ({"turns": None}, "has no turns: None"),
        ({"turns": ([1, 2],)}, "turn 0 of .* is a list, expected a Turn"),
        ({"stop": "eos"}, "stop is 'eos', expected one of stop, length"),
        ({"stop": None}, "stop is None"),
    ],
)
def test_a_field_of_another_type_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        msgspec.structs.replace(trajectory(), **change).check()
    assert "trajectory 0 of task" in str(caught.value)


def test_a_turn_of_lists_is_named() -> None:
    turn = msgspec.structs.replace(trajectory().turns[0], ids=[1, 2, 3, 4, 5])
    with pytest.raises(DataError, match="ids is a list, expected a numpy array"):
        turn.check()


def test_lengths_count_sampled_tokens_apart() -> None:
    t = trajectory(prompt=4, sampled=3)
    assert (t.length, t.sampled, t.oldest_version) == (7, 3, 1)


def test_episode_results_survive_the_wire() -> None:
    result = GroupResult(group_id=7, episodes=(Episode((trajectory(),)), Failed("timeout", "…")))
    back = decode(encode(result), GroupResult)
    assert back.episodes[1] == Failed("timeout", "…")
    assert isinstance(back.episodes[0], Episode)
    assert back.episodes[0].trajectories[0].turns[0].ids.tolist() == trajectory().turns[0].ids.tolist()


def test_rewards_survive_the_wire_as_what_they_are() -> None:
    for reward in (Value(0.5, {"format": 1.0}), Invalid("timeout")):
        t = Trajectory(
            task_id="t", group_id=1, sample_id=1, turns=trajectory().turns, reward=reward, stop=StopReason.STOP
        )
        assert decode(encode(t), Trajectory).reward == reward


def test_group_statistics_count_distinct_samples() -> None:
    # two trajectories of one sample (a branch) count once
    g = group(trajectory(0, reward=1.0), trajectory(0, reward=1.0), trajectory(1, reward=0.0))
    assert g.reward_mean == 0.5
    assert g.reward_std == pytest.approx(np.sqrt(0.5))


def test_the_deviation_of_one_is_zero() -> None:
    assert group(trajectory()).reward_std == 0.0


def test_the_oldest_token_dates_a_group() -> None:
    assert group(trajectory(0, version=5), trajectory(1, version=3)).oldest_version == 3


def test_padding_is_zero_also_in_versions() -> None:
    rows = [trajectory(i, prompt=2, sampled=4 + i % 4) for i in range(8)]
    view = Batch.of([group(*rows)]).check().padded()
    assert view["input_ids"].shape == (8, 9)
    padding = ~view["attention_mask"]
    for name in ("input_ids", "loss_mask", "logprobs", "versions"):
        assert (view[name][padding] == 0).all()
    assert view["versions"][0, :2].tolist() == [-1, -1]
    assert view["loss_mask"].sum() == sum(t.sampled for t in rows)


def test_a_batch_refuses_unequal_lengths() -> None:
    batch = Batch.of([group(trajectory())])
    for name in ("input_ids", "rewards"):
        fields = {f: getattr(batch, f) for f in Batch.__struct_fields__} | {name: np.zeros(9, np.float32)}
        with pytest.raises(DataError, match=f"batch.{name}"):
            Batch(**fields).check()


def test_an_invalid_reward_never_enters_a_batch() -> None:
    t = trajectory()
    bad = Trajectory(
        task_id="t", group_id=7, sample_id=1, turns=t.turns, reward=Invalid("timeout"), stop=StopReason.STOP
    )
    with pytest.raises(DataError, match="no reward"):
        Batch.of([group(t, bad)])


@pytest.mark.parametrize("field", GenerationHyperparameters.__struct_fields__)
@pytest.mark.parametrize("value", [object(), 2**5000, -(2**63) - 1, float("nan"), float("-inf"), ("",), ["\ud800"]])
def test_every_sampling_field_has_bounds_and_is_named(field: str, value: object) -> None:
    """Whoever makes the record: a caller of the wire, a configuration, a workflow's own code."""
    with pytest.raises(DataError, match=rf"gconfig\.{field} = .*expected"):
        GenerationHyperparameters(**{field: value}).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "smallest", "largest", "beyond"),
    [
        ("n_samples", 1, 2**16, 2**16 + 1),
        ("top_k", 0, 2**31 - 1, 2**31),
        ("max_tokens", 1, 2**31 - 1, 2**31),
        ("seed", -(2**63), 2**64 - 1, 2**64),
        ("temperature", 1e-6, 1e6, 1e7),
        ("top_p", 1e-9, 1, 1.1),
        ("frequency_penalty", -2, 2, 2.1),
        ("stop", (), ("x" * 1024,) * 64, ("x" * 1025,)),
        ("stop_token_ids", (), (2**31 - 1,) * 1024, (0,) * 1025),
    ],
)
def test_what_lies_within_the_bounds_is_taken(field: str, smallest: object, largest: object, beyond: object) -> None:
    for value in (smallest, largest):
        GenerationHyperparameters(**{field: value}).check()  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"gconfig\.{field} = "):
        GenerationHyperparameters(**{field: beyond}).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"n_samples": 0}, {"max_new_tokens": 0}, {"min_new_tokens": -1}, {"temperature": 0.0}, {"top_p": 0.0},
        {"top_p": 1.1}, {"top_k": -1}, {"frequency_penalty": 3.0}, {"max_tokens": 0},
    ],
)  # fmt: skip
def test_sampling_parameters_have_ranges(change: dict[str, float]) -> None:
    with pytest.raises(DataError, match=f"gconfig.{next(iter(change))}"):
        GenerationHyperparameters().new(**change)


def test_a_request_needs_a_context() -> None:
    with pytest.raises(DataError, match="input_ids"):
        ModelRequest(rid="a", input_ids=np.zeros(0, np.int32)).check()


def entry(name: str, offset: int = 0, **change: object) -> TensorEntry:
    fields = {"name": name, "shape": (2, 3), "dtype": "float32", "offset": offset, "nbytes": 24, "digest": "0" * 32}
    return TensorEntry(**{**fields, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ((entry("a", dtype="int4"),), "unknown dtype"),
        ((entry("a", nbytes=20),), "expected 24"),
        ((entry("a", aliases=("b",)), entry("b", 24)), "listed twice"),
    ],
)
def test_a_manifest_is_checked(entries: tuple[TensorEntry, ...], words: str) -> None:
    with pytest.raises(DataError, match=words):
        Manifest(model_id="m", version=1, tensors=entries, digest="").check()


def test_a_manifest_knows_its_buffer() -> None:
    assert Manifest(model_id="m", version=1, tensors=(entry("a"), entry("b", 64)), digest="").check().nbytes == 88
