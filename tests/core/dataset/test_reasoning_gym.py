import json

import pytest

from astraflow.core.dataset.reasoning_gym import (
    careless,
    check_gold,
    columns,
    extract_answer,
    get_reasoning_gym_rl_dataset,
    get_reasoning_gym_sft_dataset,
    score,
)
from astraflow.errors import ConfigError, DataError, UnknownNameError

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}


def test_no_question_is_in_both_splits() -> None:
    train = get_reasoning_gym_rl_dataset("chain_sum", "train", 1000, seed=1, params=SUMS)
    held_out = get_reasoning_gym_rl_dataset("chain_sum", "test", 200, seed=9, params=SUMS)
    shown = get_reasoning_gym_sft_dataset("chain_sum", 1000, seed=3, params=SUMS)
    assert not {row["task_id"] for row in train} & {row["task_id"] for row in held_out}
    short = get_reasoning_gym_rl_dataset("chain_sum", "test", 200, seed=9, params=SUMS, short=True)
    assert not {row["messages"][0]["content"] for row in shown} & {row["messages"][0]["content"] for row in short}


def test_rows_are_distinct_seeded_and_json() -> None:
    one, two, other = (
        get_reasoning_gym_rl_dataset("chain_sum", size=100, seed=seed, params=SUMS) for seed in (1, 1, 2)
    )
    assert one == two != other
    assert len({row["task_id"] for row in one}) == 100
    assert json.loads(json.dumps(one)) == one


def test_a_template_is_written_around_the_question() -> None:
    row = get_reasoning_gym_rl_dataset("chain_sum", size=1, params=SUMS, short=True, template="What is {question}?")[0]
    assert row["messages"][0]["content"] == f"What is {row['entry']['metadata']['expression'].replace(' ', '')}?"


def test_neighbouring_seeds_ask_other_questions() -> None:
    params = {"min_terms": 3, "max_terms": 5, "min_digits": 3, "max_digits": 5}
    one, two = (get_reasoning_gym_rl_dataset("chain_sum", size=200, seed=seed, params=params) for seed in (1, 2))
    assert not {row["task_id"] for row in one} & {row["task_id"] for row in two}


@pytest.mark.parametrize(
    "name", ["chain_sum", "basic_arithmetic", "gcd", "word_sorting", "sudoku", "maze", "spell_backward"]
)
def test_gold_scores_one_and_nothing_else_does(name: str) -> None:
    for row in get_reasoning_gym_rl_dataset(name, size=5, seed=3):
        assert score("", f"<answer>{row['answer']}</answer>", [], [], **row).value == 1.0
        assert score("", "no idea", [], [], **row).value == 0.0


def test_partial_marks_are_shown_but_do_not_count() -> None:
    row = get_reasoning_gym_rl_dataset("spell_backward", size=1)[0]
    reward = score("", f"<answer>{row['answer']} or so</answer>", [], [], **row)
    assert reward.value == 0.0
    assert set(reward.parts) == {"marks"}


def test_a_wrong_gold_is_found_at_load() -> None:
    rows = get_reasoning_gym_rl_dataset("gcd", size=2)
    rows[1] = {**rows[1], "answer": "x"}
    with pytest.raises(DataError, match=f"task {rows[1]['task_id']}.*expected 1"):
        check_gold(rows)


@pytest.mark.parametrize(
    ("expression", "sums", "hasty"),
    [
        ("42 - 25", [2, -3], 23),
        ("20 + 56", [7, 6], 76),
        ("98 + 93", [18, 11], 81),
        ("7 + 95", [9, 12], 92),
        ("23 - 60", [-4, 3], 43),
        ("57 - 87", [-3, 0], 30),
        ("15 - 13", [0, 2], 2),
    ],
)
def test_columns_are_summed_from_the_left(expression: str, sums: list[int], hasty: int) -> None:
    assert columns(expression) == sums
    assert careless(expression) == hasty


def test_worked_demonstrations_are_right_and_most_hasty_ones_wrong() -> None:
    rows = get_reasoning_gym_sft_dataset(size=400, seed=5, params=SUMS, worked_share=0.5)
    worked, hasty = [], []
    for row in rows:
        question, answer = (message["content"] for message in row["messages"])
        trace, _, result = answer.rpartition("=")
        (worked if trace else hasty).append(int(result) == eval(question))
        if trace:
            tens, units = map(int, trace.split(","))
            assert 10 * tens + units == int(result)
    assert all(worked)
    assert 150 < len(worked) < 250
    assert 0.15 < sum(hasty) / len(hasty) < 0.4


@pytest.mark.parametrize(
    ("text", "answer"),
    [("2,-3=17", "17"), ("=1=2", "2"), ("<answer>4</answer>=3", "4"), ("a\nb", "b"), ("", None), ("=", "")],
)
def test_the_answer_is_extracted(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


def test_wrong_names_and_sizes_are_clear() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chain_sum'"):
        get_reasoning_gym_rl_dataset("chain_sums")
    with pytest.raises(ConfigError, match="expected train or test"):
        get_reasoning_gym_rl_dataset("chain_sum", "dev")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no bare expression"):
        get_reasoning_gym_rl_dataset("sudoku", size=1, short=True)
    with pytest.raises(ConfigError, match="no place for the question"):
        get_reasoning_gym_rl_dataset("chain_sum", size=1, template="What is it?")
    with pytest.raises(ConfigError, match="min_term"):
        get_reasoning_gym_rl_dataset("chain_sum", size=1, params={"min_term": 2})
    with pytest.raises(DataError, match="distinct test questions"):
        get_reasoning_gym_rl_dataset("chain_sum", "test", 2000, params={**SUMS, "max_digits": 1, "min_digits": 1})
    with pytest.raises(DataError, match="no worked demonstration"):
        get_reasoning_gym_sft_dataset(size=1, params={"min_terms": 3, "max_terms": 3})


def test_a_size_below_one_is_named() -> None:
    with pytest.raises(ConfigError, match="reasoning_gym size is -1, expected 1 or more"):
        get_reasoning_gym_rl_dataset("chain_sum", size=-1)
