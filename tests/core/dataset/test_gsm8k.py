import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.core.dataset.gsm8k import INSTRUCTION, get_gsm8k_rl_dataset, gold_answer
from astraflow.errors import ConfigError, DataError

SOLUTIONS = {"18": "9 * 2 = <<9*2=18>>18\n#### 18", "1000": "So it is\n#### 1,000", "-3": "#### -3", "0.5": "#### 0.5"}


def write(path: Path, answers: list[str]) -> str:
    rows = [{"question": f"Question {number}?", "answer": answer} for number, answer in enumerate(answers)]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", "utf-8")
    return str(path)


def test_rows_ask_the_question_and_know_the_number(tmp_path: Path) -> None:
    rows = get_gsm8k_rl_dataset(write(tmp_path / "train.jsonl", list(SOLUTIONS.values())))
    assert [row["answer"] for row in rows] == list(SOLUTIONS)
    assert rows[0]["messages"] == [{"role": "user", "content": f"Question 0?\n\n{INSTRUCTION}"}]
    assert len({row["task_id"] for row in rows}) == 4
    bare = get_gsm8k_rl_dataset(str(tmp_path / "train.jsonl"), instruction="")
    assert bare[0]["messages"][0]["content"] == "Question 0?"


def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write(path, ["#### 1"])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [row["answer"] for row in get_gsm8k_rl_dataset(str(path))] == ["1"]


def test_a_folder_holds_both_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ["#### 1"])
    write(tmp_path / "test.jsonl", ["#### 2", "#### 3"])
    assert [len(get_gsm8k_rl_dataset(str(tmp_path), split)) for split in ("train", "test")] == [1, 2]


def test_one_file_is_divided_by_question(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", ["#### 1"] * 400)
    train, test = (get_gsm8k_rl_dataset(path, split, hold_out=True) for split in ("train", "test"))
    ids = [{row["task_id"] for row in rows} for rows in (train, test)]
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 400
    assert 20 < len(test) < 60


def test_a_folder_is_divided_already(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hold_out divides a single \.jsonl file"):
        get_gsm8k_rl_dataset(str(tmp_path), hold_out=True)


@pytest.mark.parametrize("key", ["size", "shots"])
def test_a_number_below_zero_is_named(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "all.jsonl", ["#### 1"] * 4)
    with pytest.raises(ConfigError, match=f"gsm8k {key} is -1, expected 0 or more"):
        get_gsm8k_rl_dataset(path, **{key: -1})  # type: ignore[arg-type]


def test_a_sample_is_seeded(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", ["#### 1"] * 50)
    one, again, other = (get_gsm8k_rl_dataset(path, size=10, seed=seed) for seed in (1, 1, 2))
    assert one == again != other
    assert len({row["task_id"] for row in one}) == 10


def test_shots_are_shown_solved_and_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", ["It is <<1+1=2>>2.\n#### 2"] * 12)
    rows = get_gsm8k_rl_dataset(path, shots=2, instruction="")
    assert len(rows) == 10
    assert {tuple(message["role"] for message in row["messages"]) for row in rows} == {
        ("user", "assistant", "user", "assistant", "user")
    }
    assert {row["messages"][1]["content"] for row in rows} == {"It is 2.\n#### 2"}
    shown = {row["messages"][n]["content"] for row in rows for n in (0, 2)}
    assert len(shown) == 2
    assert not shown & {row["messages"][-1]["content"] for row in rows}
    with pytest.raises(DataError, match="12 train questions cannot give 13 shots"):
        get_gsm8k_rl_dataset(path, shots=13)


def test_shots_of_the_test_split_come_from_the_train_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ["#### 1"] * 8)
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "Held out?", "answer": "#### 2"}))
    (row,) = get_gsm8k_rl_dataset(str(tmp_path), "test", shots=1, instruction="")
    assert row["messages"][1]["content"] == "#### 1"
    assert row["messages"][-1]["content"] == "Held out?"


@pytest.mark.parametrize("solution", ["no marker 18", "#### eighteen", "", "####"])
def test_a_gold_that_is_no_number_is_named(solution: str) -> None:
    with pytest.raises(DataError, match="here:3: the answer does not end in"):
        gold_answer(solution, "here:3")


def test_a_solution_whose_text_grades_as_another_number_is_named() -> None:
    with pytest.raises(DataError, match="grades as wrong for the gold 18"):
        gold_answer(r"\boxed{17}\n#### 18", "here")


def test_wrong_files_are_named_by_line(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"question": "a", "answer": "#### 1"}\n\n{"question": "b"}\n')
    with pytest.raises(DataError, match=r"train\.jsonl:3: expected \{question, answer\}.*answer"):
        get_gsm8k_rl_dataset(str(file))
    with pytest.raises(DataError, match="there is no file"):
        get_gsm8k_rl_dataset(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(DataError, match=r"holds no test\.jsonl"):
        get_gsm8k_rl_dataset(str(tmp_path), "test")
    with pytest.raises(ConfigError, match="expected train or test"):
        get_gsm8k_rl_dataset(str(file), "dev")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="1 train questions, 5 were asked for"):
        get_gsm8k_rl_dataset(write(tmp_path / "one.jsonl", ["#### 1"]), size=5)


def test_a_name_that_cannot_be_fetched_says_so(tmp_path: Path) -> None:
    """In a process of its own: the Hub's client reads its environment when it is imported."""
    pytest.importorskip("datasets")
    code = """
from astraflow.core.dataset.gsm8k import get_gsm8k_rl_dataset
from astraflow.errors import ConfigError
try:
    get_gsm8k_rl_dataset("nobody/nothing")
except ConfigError as error:
    print(error)
"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "dataset nobody/nothing can neither be fetched nor is it in the Hub's cache" in done.stdout


@pytest.mark.skipif("GSM8K_JSONL" not in os.environ, reason="GSM8K_JSONL does not name the published rows")
def test_the_published_rows_load() -> None:
    rows = get_gsm8k_rl_dataset(os.environ["GSM8K_JSONL"])
    assert len(rows) > 1000
    assert len({row["task_id"] for row in rows}) == len(rows)
