"""One prompt, one answer, one reward."""

import asyncio

import pytest

from astraflow.core.data import GenerationHyperparameters, Value
from astraflow.core.data.trajectory import Episode, GroupResult
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.workflow.api.engine_api import ScriptedInference
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.reward_api import ServedReward
from astraflow.core.workflow.impl.rlvr import RLVRWorkflow

TOKENIZER = tiny_tokenizer()
ROW = {"messages": [{"role": "user", "content": "6*7="}], "answer": "42", "task_id": "t"}


class Recorder:
    """A tokenizer that notes how the template was asked for, and how often."""

    def __init__(self) -> None:
        self.asked: list[dict] = []

    def apply_chat_template(self, messages, add_generation_prompt=True, **kwargs):
        self.asked.append(kwargs)
        return TOKENIZER.apply_chat_template(messages, add_generation_prompt)

    def encode(self, text, add_special_tokens=False):
        return TOKENIZER.encode(text, add_special_tokens)

    def decode(self, ids, skip_special_tokens=True):
        return TOKENIZER.decode(ids, skip_special_tokens)


def run(
    n_samples: int = 2, row: dict | None = None, **options
) -> tuple[GroupResult, ScriptedInference, Recorder, list]:
    seen: list[tuple] = []

    def reward(prompt, completions, prompt_ids, completion_ids, answer, **rest):
        seen.append((prompt, completions, prompt_ids, completion_ids, rest))
        return float(completions == answer)

    tokenizer = Recorder()
    gconfig = GenerationHyperparameters(n_samples=n_samples, max_new_tokens=8)
    workflow = RLVRWorkflow(ServedReward(reward), gconfig, tokenizer, **options)
    engine = ScriptedInference(lambda request: [*TOKENIZER.encode("42"), *TOKENIZER.eos_token_ids], version=3)
    group = GroupTask(task_id="t", group_id=9, data=ROW if row is None else row, n_samples=n_samples, model_id="model0")
    return asyncio.run(workflow.run_group(engine, group)), engine, tokenizer, seen


def test_prompt_completion_and_row_reach_the_reward() -> None:
    result, engine, _, seen = run()
    prompt, completion, prompt_ids, completion_ids, rest = seen[0]
    assert prompt == "<|user|>6*7=<|end|><|assistant|>"
    assert completion == "42", "special tokens are left out of the text"
    assert prompt_ids == engine.requests[0].input_ids.tolist() == TOKENIZER.encode(prompt)
    assert completion_ids == [*TOKENIZER.encode("42"), *TOKENIZER.eos_token_ids]
    assert rest == {"messages": ROW["messages"], "task_id": "t"}
    (episode, _) = result.episodes
    assert isinstance(episode, Episode)
    (trajectory,) = episode.trajectories
    assert trajectory.reward == Value(1.0)
    assert (trajectory.stop, trajectory.model_id) == ("stop", "model0")
    assert set(trajectory.timing) == {"generate", "reward"}


def test_the_prompt_is_encoded_once_for_a_group_and_requests_differ_in_rid() -> None:
    _, engine, tokenizer, _ = run(n_samples=4)
    assert len(tokenizer.asked) == 1
    assert len({request.rid for request in engine.requests}) == 4
    assert all(request.input_ids is engine.requests[0].input_ids for request in engine.requests)


@pytest.mark.parametrize(("options", "asked"), [({}, {}), ({"enable_thinking": False}, {"enable_thinking": False})])
def test_enable_thinking_goes_to_the_template(options: dict, asked: dict) -> None:
    _, _, tokenizer, _ = run(**options)
    assert tokenizer.asked == [asked]


def test_a_row_without_messages_fails_its_samples() -> None:
    result, *_ = run(row={"task_id": "t"})
    assert {episode.reason for episode in result.episodes} == {"crash"}
    assert "has no messages" in result.episodes[0].detail
