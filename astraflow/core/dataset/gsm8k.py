"""GSM8K (Cobbe et al., arXiv 2110.14168): grade-school word problems, rows {question, answer} with the gold after ####.

Gold answers are checked when rows are loaded (LAW 32): read as a model's text, the gold has the gold's value, and its
successor has not.
"""

from __future__ import annotations

import codecs
import hashlib
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from astraflow.core.data.trajectory import Row
from astraflow.core.text.math_answer import final_answer, number_in
from astraflow.errors import ConfigError, DataError
from astraflow.registry import load_target

Split = Literal["train", "test"]

HUB_NAME = "openai/gsm8k"
SUBSET = "main"
INSTRUCTION = "Think step by step. End with a line of the form: #### <number>"
HELD_OUT_PERCENT = 10
_NOTES = re.compile(r"<<.*?>>")


class Problem(msgspec.Struct, frozen=True):
    """A line of the files as they are published."""

    question: str
    answer: str
    """The solution; its last line is "#### " and the result."""


def get_gsm8k_rl_dataset(
    path: str = HUB_NAME,
    split: Split = "train",
    size: int | None = None,
    seed: int = 1,
    hold_out: bool = False,
    instruction: str = INSTRUCTION,
    shots: int = 0,
) -> list[Row]:
    """Return rows {messages, answer, task_id}: the question with the instruction under it, and the number to find.

    path: a .jsonl file, a folder with train.jsonl and test.jsonl, or a name on the Hub. hold_out: of a single file, one
    question in ten, chosen by a hash of its text, is the test split, the others are the train split; without it, both
    splits are the whole file. ConfigError for hold_out of a folder or a name, which have their splits. size: so many
    rows, drawn by seed; None: all. shots: so many solved problems of the train split stand before each question, as
    earlier turns; they are drawn by seed and are no rows themselves. DataError names the file and line of a row that is
    not right.
    """
    if split not in ("train", "test"):
        raise ConfigError(f"gsm8k split '{split}': expected train or test")
    if hold_out and not (path.endswith(".jsonl") or Path(path).expanduser().is_file()):
        raise ConfigError(f"gsm8k hold_out divides a single .jsonl file; {path} has a train and a test split already")
    for key, value in (("size", size), ("shots", shots)):
        if value is not None and value < 0:
            raise ConfigError(f"gsm8k {key} is {value}, expected 0 or more")
    problems = _split(path, split, hold_out)
    examples = _examples(problems if split == "train" else _split(path, "train", hold_out), shots, seed)
    problems = [(where, problem) for where, problem in problems if problem not in examples]
    if size is not None:
        if size > len(problems):
            raise DataError(f"{path} has {len(problems)} {split} questions, {size} were asked for")
        problems = random.Random(seed).sample(problems, size)
    before = [turn for example in examples for turn in (_asked(example, instruction), _solved(example))]
    return [
        {
            "messages": [*before, _asked(problem, instruction)],
            "answer": gold_answer(problem.answer, where),
            "task_id": _digest(problem)[:16],
        }
        for where, problem in problems
    ]


def gold_answer(solution: str, where: str) -> str:
    """The number after the last ####, in plain form; DataError where there is none, or where it grades wrongly."""
    _, marker, tail = solution.rpartition("####")
    gold = tail.strip().replace(",", "")
    value = number_in(gold)
    if not marker or value is None or not any(map(str.isdigit, gold)):
        raise DataError(f"{where}: the answer does not end in '#### <number>': {solution[-60:]!r}")
    for text, right in ((solution, True), (f"#### {value + 1}", False)):
        if (number_in(final_answer(text)) == value) is not right:
            raise DataError(f"{where}: {text[-60:]!r} grades as {'wrong' if right else 'right'} for the gold {gold}")
    return gold


def held_out(problem: Problem) -> bool:
    """Whether a question of an undivided file belongs to the test split."""
    return int(_digest(problem)[:8], 16) % 100 < HELD_OUT_PERCENT


def _problems(path: str, split: Split) -> Iterator[tuple[str, Problem]]:
    """(where, problem) of every row."""
    place = Path(path).expanduser()
    file = place / f"{split}.jsonl" if place.is_dir() else place
    if file.is_file():
        yield from _decoded(enumerate(file.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(), 1), str(file))
    elif place.is_dir():
        raise DataError(f"{place} holds no {split}.jsonl")
    elif file.suffix == ".jsonl" or path.startswith((".", "/", "~")):
        raise DataError(f"there is no file {path}")
    else:
        # loaded only here: most users have the file, and the package is large
        read_hub = load_target("astraflow.core.dataset.hub:read_hub", "dataset")
        rows: Iterable[dict[str, Any]] = read_hub(path, SUBSET, split)
        yield from _decoded(enumerate(map(msgspec.json.encode, rows), 1), path)


def _decoded(lines: Iterable[tuple[int, bytes]], source: str) -> Iterator[tuple[str, Problem]]:
    decoder = msgspec.json.Decoder(Problem)
    for number, line in lines:
        where = f"{source}:{number}"
        if not line.strip():
            continue
        try:
            yield where, decoder.decode(line)
        except msgspec.DecodeError as error:
            raise DataError(f"{where}: expected {{question, answer}}: {error}") from error


def _split(path: str, split: Split, hold_out: bool) -> list[tuple[str, Problem]]:
    found = list(_problems(path, split))
    return [one for one in found if held_out(one[1]) == (split == "test")] if hold_out else found


def _examples(problems: list[tuple[str, Problem]], shots: int, seed: int) -> list[Problem]:
    """Problems to show, from the shortest quarter, so that prompts stay short."""
    by_length = sorted((problem for _, problem in problems), key=lambda one: len(one.question) + len(one.answer))
    quarter = by_length[: max(shots, len(by_length) // 4)]
    if shots > len(quarter):
        raise DataError(f"{len(problems)} train questions cannot give {shots} shots")
    return random.Random(seed).sample(quarter, shots)


def _asked(problem: Problem, instruction: str) -> dict[str, str]:
    question = problem.question.strip()
    return {"role": "user", "content": f"{question}\n\n{instruction}" if instruction else question}


def _solved(problem: Problem) -> dict[str, str]:
    """The solution as a model would write it, without the calculator's notes <<2*3=6>>."""
    return {"role": "assistant", "content": _NOTES.sub("", problem.answer).strip()}


def _digest(problem: Problem) -> str:
    return hashlib.sha256(problem.question.strip().encode()).hexdigest()
