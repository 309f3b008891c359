"""Tasks of the reasoning-gym package: rows for RL, worked demonstrations for SFT, and the scorer.

Held-out questions are chosen by a hash of the question itself, so no question is in both splits, whatever the sizes and
seeds. Gold answers are checked when rows are loaded: the gold must score 1 and a wrong answer must not.
"""

from __future__ import annotations

import hashlib
import random
import re
from functools import cache
from typing import Any, Literal

import reasoning_gym
from reasoning_gym.factory import get_score_answer_fn

from astraflow.core.data import Value
from astraflow.core.data.trajectory import Row
from astraflow.errors import ConfigError, DataError, UnknownNameError, boundary

Split = Literal["train", "test"]

HELD_OUT_PERCENT = 10
TERM = re.compile(r"(\d+) ([+-]) (\d+)")


def get_reasoning_gym_rl_dataset(
    name: str,
    split: Split = "train",
    size: int = 1000,
    seed: int = 1,
    params: dict[str, Any] | None = None,
    short: bool = False,
    template: str = "{question}",
) -> list[Row]:
    """Return `size` distinct rows of a reasoning-gym dataset.

    name: dataset, e.g. "chain_sum"; params: its own settings; short: ask with the bare expression ("42-25") where the
    dataset has one, which spares a small model the sentence around it; template: what is written around {question}.
    Rows: {messages, answer, task_id, name, entry}. DataError if the dataset cannot give so many distinct
    questions of the split.
    """
    if "{question}" not in template:
        raise ConfigError(f"reasoning_gym template {template!r} has no place for the question: {{question}}")
    rows = [_row(name, entry, short, template) for entry in _entries(name, split, size, seed, params or {})]
    check_gold(rows)
    return rows


def get_reasoning_gym_sft_dataset(
    name: str = "chain_sum",
    size: int = 2000,
    seed: int = 1,
    params: dict[str, Any] | None = None,
    worked_share: float = 1.0,
) -> list[Row]:
    """Return `size` demonstrations {messages} from the train split, of mixed quality, as found in the wild.

    A share shows its working and is right: the column sums from the left, then the answer, "42-25" → "2,-3=17". The
    others answer at once and carelessly, without carry, borrow or sign, so that most are wrong: "42-25" → "=23".
    Only two-term chain_sum has demonstrations.
    """
    chance = random.Random(seed)
    rows: list[Row] = []
    for entry in _entries(name, "train", size, seed, params or {}):
        expression = entry["metadata"]["expression"]
        if chance.random() < worked_share:
            answer = f"{','.join(map(str, columns(expression)))}={entry['answer']}"
        else:
            answer = f"={careless(expression)}"
        rows.append({"messages": [*_row(name, entry, True)["messages"], {"role": "assistant", "content": answer}]})
    return rows


def score(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> Value:
    """Reward: 1 if the dataset's own scorer gives the extracted answer full marks, else 0; partial marks show apart."""
    marks = float(_scorer(row["name"])(answer=extract_answer(completions), entry=row["entry"]))
    return Value(float(marks >= 1.0), {"marks": marks})


def extract_answer(text: str) -> str | None:
    """The last <answer>…</answer>, else what follows the last "=", else the last line; None for an empty text."""
    tagged = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    if tagged:
        return str(tagged[-1]).strip()
    if "=" in text:
        return text.rpartition("=")[2].strip()
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else None


def check_gold(rows: list[Row]) -> None:
    """LAW 32: raise DataError unless each row's gold answer scores 1 and a wrong one does not."""
    for row in rows:
        for answer, right in ((row["answer"], True), ("∅", False)):
            value = score("", f"<answer>{answer}</answer>", [], [], **row).value
            if (value == 1.0) is not right:
                raise DataError(
                    f"reasoning_gym {row['name']}, task {row['task_id']}: the answer {answer!r} scores {value}, "
                    f"expected {'1' if right else 'less than 1'}"
                )


def columns(expression: str) -> list[int]:
    """Column sums of a two-term expression from the left: "42 - 25" → [2, -3]."""
    match = TERM.fullmatch(expression)
    if match is None:
        raise DataError(f"no worked demonstration for '{expression}': only sums and differences of two terms have one")
    width = max(len(match[1]), len(match[3]))
    sign = 1 if match[2] == "+" else -1
    digits = zip(match[1].zfill(width), match[3].zfill(width), strict=True)
    return [int(a) + sign * int(b) for a, b in digits]


def careless(expression: str) -> int:
    """The answer digit by digit, without carry, borrow or sign: "42 - 25" → 23, "98 + 93" → 81, "23 - 60" → 43."""
    return int("".join(str(abs(column) % 10) for column in columns(expression)))


def held_out(question: str) -> bool:
    """Whether a question belongs to the test split."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 100 < HELD_OUT_PERCENT


def _entries(name: str, split: Split, size: int, seed: int, params: dict[str, Any]) -> list[dict[str, Any]]:
    if split not in ("train", "test"):
        raise ConfigError(f"reasoning_gym split '{split}': expected train or test")
    if name not in reasoning_gym.factory.DATASETS:
        raise UnknownNameError("reasoning_gym dataset", name, list(reasoning_gym.factory.DATASETS))
    if size < 1:
        raise ConfigError(f"reasoning_gym size is {size}, expected 1 or more")
    share = HELD_OUT_PERCENT if split == "test" else 100 - HELD_OUT_PERCENT
    budget = 200 + size * 100 * 4 // share
    with boundary(ConfigError, f"reasoning_gym {name} with params {params}"):
        source = reasoning_gym.create_dataset(name, seed=_spread(seed), size=budget, **params)
    entries: list[dict[str, Any]] = []
    seen: set[str] = set()
    for entry in source:
        question = entry["question"]
        if question not in seen and held_out(question) == (split == "test"):
            seen.add(question)
            entries.append(entry)
            if len(entries) == size:
                return entries
    raise DataError(
        f"reasoning_gym {name}: {len(entries)} distinct {split} questions in {budget} draws, {size} were asked for"
    )


def _spread(seed: int) -> int:
    """Take neighbouring seeds far apart: entry i is drawn from seed + i, so seed + 1 would give the same ones."""
    return int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4], "big") // 2


def _row(name: str, entry: dict[str, Any], short: bool, template: str = "{question}") -> Row:
    question = entry["question"]
    if short:
        if "expression" not in entry["metadata"]:
            raise ConfigError(f"reasoning_gym {name} has no bare expression to ask with; leave short: false")
        question = entry["metadata"]["expression"].replace(" ", "")
    return {
        "messages": [{"role": "user", "content": template.replace("{question}", question)}],
        "answer": str(entry["answer"]),
        "task_id": hashlib.sha256(f"{name}\n{entry['question']}".encode()).hexdigest()[:16],
        "name": name,
        # only what scorers read; tuples and numpy values in it would not survive the wire
        "entry": {"question": entry["question"], "answer": entry["answer"], "metadata": _plain(entry["metadata"])},
    }


def _plain(value: Any) -> Any:
    """JSON's own types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


@cache
def _scorer(name: str) -> Any:
    return get_score_answer_fn(name)
