"""The scripted engine's own promises; what it shares with the others is in tests/contracts/test_engine.py."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.errors import EngineError
from astraflow.raas.engines.scripted import ScriptedEngine


def ask(engine: ScriptedEngine, prompt: list[int], **config: object) -> ModelResponse:
    gconfig = GenerationHyperparameters(**config)  # type: ignore[arg-type]
    request = ModelRequest(rid="r", input_ids=np.array(prompt), gconfig=gconfig)
    return asyncio.run(engine.agenerate(request))


def test_answers_come_from_a_table_of_prompts() -> None:
    engine = ScriptedEngine("m", {(1, 2): [5, 6, 7]}, eos_token_ids=[6], version=3, logprob=-0.25)
    response = ask(engine, [1, 2])
    assert response.output_tokens.tolist() == [5, 6]
    assert response.output_versions.tolist() == [3, 3]
    assert response.output_logprobs.tolist() == [-0.25, -0.25]
    assert response.stop_reason is StopReason.STOP


def test_a_prompt_without_an_answer_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"no answer for prompt \(9,\)"):
        ask(ScriptedEngine("m", {}), [9])


def test_a_script_that_ends_too_soon_is_an_error() -> None:
    with pytest.raises(EngineError, match="ends after 1 tokens"):
        ask(ScriptedEngine("m", {(1,): [5]}), [1])


def test_ends_are_passed_over_where_asked() -> None:
    engine = ScriptedEngine("m", {(1,): [6, 5, 6, 6]}, eos_token_ids=[6])
    assert ask(engine, [1]).output_tokens.tolist() == [6]
    assert ask(engine, [1], min_new_tokens=1).output_tokens.tolist() == [6, 5, 6]
    assert ask(engine, [1], ignore_eos=True, max_new_tokens=4).output_tokens.tolist() == [6, 5, 6, 6]


def test_a_field_it_is_told_not_to_support_is_refused_by_name() -> None:
    engine = ScriptedEngine("m", {(1,): [6]}, eos_token_ids=[6], unsupported=["frequency_penalty"])
    engine.supports(GenerationHyperparameters(top_p=0.5))
    with pytest.raises(EngineError, match="frequency_penalty"):
        engine.supports(GenerationHyperparameters(frequency_penalty=0.5))
