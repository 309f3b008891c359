from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.launch.doctor import Finding, Machine, Severity, examine
from astraflow.launch.doctor.data import wrong_answers

MODULE = """\
def rows(size, bad=False):
    row = lambda i: {"messages": [{"role": "user", "content": "é" if bad else f"{i}+1"}], "answer": str(i + 1),
                     "task_id": str(i)}
    return [row(i) for i in range(size)]

def without_answer(size):
    return [{"messages": [], "task_id": "1"}]

def exact(prompt, completions, prompt_ids, completion_ids, answer, **row):
    return float(completions == answer)

def zero(prompt, completions, prompt_ids, completion_ids, **row):
    return 0.0

def form(prompt, completions, prompt_ids, completion_ids, **row):
    return float("<answer>" in completions)

def digits(prompt, completions, prompt_ids, completion_ids, **row):
    return float(completions.isdigit())

def own(prompt, completions, prompt_ids, completion_ids, answer, **row):
    return float(completions == f"Result: {answer}")

def crash(prompt, completions, prompt_ids, completion_ids, **row):
    return row["gold"]

def slow(prompt, completions, prompt_ids, completion_ids, **row):
    while True:
        pass
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doctor_case.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def graded(run_yaml: Path, here: Machine) -> Callable[..., list[Finding]]:
    """Findings with the module's rows and one of its rewards."""
    text = run_yaml.read_text()
    start, end = text.index("  rollout_dataset:"), text.index("trainer_base:")
    run_yaml.write_text(f"{text[:start]}  rollout_dataset: {{dataset_fn: 'doctor_case:rows', size: 40}}\n{text[end:]}")

    def run(reward: str, *overrides: str, phrasings: tuple[str, ...] = ()) -> list[Finding]:
        workflow = f"dataflow.workflow_spec.reward_fn=doctor_case:{reward}"
        found = examine([run_yaml], [workflow, *overrides], here=here, phrasings=phrasings)
        return [f for f in found if f.severity is not Severity.OK]

    return run


def test_a_reward_that_knows_the_answers(graded: Callable[..., list[Finding]]) -> None:
    assert graded("exact") == []


def test_gold_that_scores_0(graded: Callable[..., list[Finding]]) -> None:
    (found,) = graded("zero")
    assert (found.check, found.severity) == ("gold", Severity.ERROR)
    assert found.key == "dataflow.workflow_spec.reward_fn"
    assert "the right answer scores 0 in 16 of 16 rows, first for task 0 (answer '1')" in found.message


def test_an_answer_written_in_a_way_of_its_own(graded: Callable[..., list[Finding]]) -> None:
    (found,) = graded("own")
    assert "--answer 'Result: {answer}'" in found.remedy
    assert graded("own", phrasings=("Result: {answer}",)) == []


@pytest.mark.parametrize("reward", ["form", "digits"])
def test_a_reward_that_does_not_tell_right_from_wrong(graded: Callable[..., list[Finding]], reward: str) -> None:
    (found,) = graded(reward)
    assert (found.check, found.severity) == ("gold", Severity.WARNING)
    assert "scores as much as the right one" in found.message


def test_a_reward_that_crashes(graded: Callable[..., list[Finding]]) -> None:
    (found,) = graded("crash")
    assert "Invalid(crash) in 16 of 16 rows" in found.message
    assert "KeyError: 'gold'" in found.message


def test_a_reward_that_never_ends(graded: Callable[..., list[Finding]]) -> None:
    (found,) = graded("slow", "+rollout.reward_timeout_s=0.01", "+trainer_base.actor.ppo_n_minibatches=1")
    assert "Invalid(timeout)" in found.message


@pytest.mark.parametrize(
    ("answer", "wrong"), [("41", "42"), (-3, "-2"), ("x", None), ("1/2", None), ("--5", None), ("9" * 5000, None)]
)
def test_the_next_number_is_a_wrong_answer(answer: object, wrong: str | None) -> None:
    assert wrong_answers(answer) == (["∅"] if wrong is None else ["∅", wrong])


def test_rows_that_are_trained_on_and_scored(graded: Callable[..., list[Finding]]) -> None:
    scored = "+dataflow.eval_datasets.e={dataset_fn: 'doctor_case:rows', size: 50, eval_workflow: w}"
    workflow = "+dataflow.eval_workflows.w={reward_fn: 'doctor_case:exact'}"
    (found,) = graded("exact", workflow, scored)
    assert (found.check, found.severity, found.key) == ("data", Severity.WARNING, "dataflow.eval_datasets.e")
    assert "40 of 50 rows are trained on too" in found.message


def test_rows_that_do_not_load(graded: Callable[..., list[Finding]]) -> None:
    found = graded("exact", "dataflow.rollout_dataset.dataset_fn=doctor_case:without_answer")
    assert [(f.check, f.severity, f.key) for f in found] == [("data", Severity.ERROR, "dataflow.rollout_dataset")]
    assert "row 0 has no column 'answer'" in found[0].message


def test_characters_that_the_tokenizer_does_not_know(graded: Callable[..., list[Finding]]) -> None:
    (found,) = graded("exact", "+dataflow.rollout_dataset.bad=true")
    assert "40 of 40 prompts have characters that the tokenizer does not know" in found.message
