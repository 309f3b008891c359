"""examples/loop.py is short, stands on three packages, and learns."""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "examples" / "loop.py"
MAY_IMPORT = ("astraflow.core.text", "astraflow.core.model", "astraflow.train_worker.algorithms")


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loop_example", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_it_is_one_short_file_on_three_packages() -> None:
    text = FILE.read_text("utf-8")
    assert len(text.splitlines()) <= 250
    modules = {node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    ours = {module for module in modules if module.startswith("astraflow")}
    assert ours
    assert [module for module in ours if not module.startswith(MAY_IMPORT)] == []


def test_the_chance_of_a_token_is_that_of_the_model_that_wrote_it(loop: ModuleType) -> None:
    """LAW 15: scored by the model that sampled them, the answers have a ratio of 1."""
    tokenizer, model = loop.tiny_tokenizer(), loop.new_model("tiny-0.2m", seed=3)
    rows = loop.roll_out(model, tokenizer, ["abcd", "hgfe"], n_samples=4)
    scored = loop.token_logprobs(model, rows.ids, rows.cu_seqlens)
    assert (scored - rows.logprobs)[rows.mask].abs().max() < 1e-4
    assert rows.mask.sum() == sum(
        rows.mask[a:b].sum() for a, b in zip(rows.cu_seqlens, rows.cu_seqlens[1:], strict=False)
    )


def test_groups_without_a_difference_teach_nothing(loop: ModuleType) -> None:
    torch = sys.modules["torch"]
    rows = loop.Rows(
        ids=torch.arange(8),
        cu_seqlens=torch.tensor([0, 2, 4, 6, 8]),
        mask=torch.tensor([False, True] * 4),
        logprobs=torch.zeros(8),
        group=torch.tensor([0, 0, 1, 1]),
        rewards=torch.tensor([1.0, 1.0, 0.0, 1.0]),
    )
    kept, advantages = loop.judge(rows)
    assert kept.ids.tolist() == [4, 5, 6, 7]
    assert advantages[kept.mask].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-4)


@pytest.mark.system
def test_it_learns(loop: ModuleType) -> None:
    lines: list[str] = []
    rewards = list(loop.learn(imitation_steps=220, steps=18, seed=1, say=lines.append))
    assert sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3 > 0.15, "\n".join(lines)
