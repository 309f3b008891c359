"""The datasets load, their prompts can be written, and their rewards know right from wrong (LAW 32)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.data.trajectory import Row
from astraflow.core.dataset.loading import APART, load_rows, shared_rows
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper, ServedReward
from astraflow.core.workflow.registry import REWARD_REGISTRY
from astraflow.core.workflow.reward.pool import RewardPool
from astraflow.errors import AstraFlowError
from astraflow.launch.doctor.finding import Finding, error, ok, warning
from astraflow.launch.doctor.subject import Dataset, Subject

DATA, GOLD = "data", "gold"
ROWS_GRADED = 16
"""Of each dataset, spread over it."""
PHRASINGS = (
    "{answer}",
    "<answer>{answer}</answer>",
    "#### {answer}",
    "\\boxed{{{answer}}}",
    "={answer}",
    "{answer} + 0 = {answer}",
    "The answer is {answer}.",
)
"""Ways in which models write a final answer; the reward has to know one."""
WHOLE = re.compile(r"-?[0-9]{1,1000}")
"""A whole number, short enough to count with."""
NO_ANSWER = "∅"
"""No dataset's right answer."""

Grade = Callable[[str, Sequence[Row]], Sequence[Mapping[str, Sequence[Reward]]]]
"""(reward function, rows) → what `_grade` finds."""


def load(
    datasets: Sequence[Dataset], tokenizer: Tokenizer | None, seed: int
) -> tuple[dict[str, Sequence[Row]], list[Finding]]:
    """(rows by the path of the dataset's section, what does not load)."""
    rows: dict[str, Sequence[Row]] = {}
    found: list[Finding] = []
    for dataset in datasets:
        config = dataset.config
        try:
            rows[dataset.path] = load_rows(
                config.dataset_fn,
                config.keywords,
                split=dataset.split,
                seed=seed,
                tokenizer=tokenizer,
                max_length=config.max_length,
            )
        except AstraFlowError as failure:
            remedy = "mend the rows, or what the configuration passes to the dataset function"
            found.append(error(DATA, str(failure), remedy, dataset.path))
    return rows, found


def check(subject: Subject, phrasings: Sequence[str] = ()) -> list[Finding]:
    """`phrasings` are more ways to write a final answer, with {answer} in them."""
    found: list[Finding] = []
    with _grading(subject.config.rollout.reward_timeout_s, [*PHRASINGS, *phrasings]) as grade:
        for dataset in subject.datasets:
            rows = subject.rows.get(dataset.path)
            if rows is not None:
                found += [*_prompts(subject.tokenizer, dataset, rows), *_gold(dataset, rows, grade)]
    return [*found, *_apart(subject)]


@contextmanager
def _grading(timeout: float, phrasings: Sequence[str]) -> Iterator[Grade]:
    """One process computes the rewards of all datasets: it imports what they need once."""
    pool = RewardPool(1)

    async def close() -> None:
        pool.close()

    with asyncio.Runner() as runner:
        try:
            yield lambda name, rows: runner.run(_grade(pool, name, rows, phrasings, timeout))
        finally:
            runner.run(close())


def _apart(subject: Subject) -> Iterator[Finding]:
    """What is scored must not be what is trained on."""
    loaded = [(dataset, subject.rows[dataset.path]) for dataset in subject.datasets if dataset.path in subject.rows]
    trained = [row for dataset, rows in loaded if not dataset.scored for row in rows]
    for dataset, rows in loaded:
        if dataset.scored and (both := shared_rows(trained, rows)):
            yield warning(DATA, f"{dataset.path}: {both} of {len(rows)} rows are trained on too", APART, dataset.path)


def _prompts(tokenizer: Tokenizer | None, dataset: Dataset, rows: Sequence[Row]) -> Iterator[Finding]:
    if tokenizer is None:
        return
    try:
        prompts = [tokenizer.encode_chat(row["messages"]) for row in rows]
    except AstraFlowError as failure:
        yield error(DATA, str(failure), "the chat template refuses a row's messages: change either", dataset.path)
        return
    unknown = tokenizer.token_to_id("<unk>")
    unreadable = sum(unknown in ids for ids in prompts) if unknown is not None else 0
    if unreadable:
        yield warning(
            DATA,
            f"{unreadable} of {len(rows)} prompts have characters that the tokenizer does not know",
            "another tokenizer, or other text",
            dataset.path,
        )
    longest = max(map(len, prompts))
    yield ok(DATA, f"{dataset.path}: {len(rows):,} rows, prompts of up to {longest} tokens")


def _gold(dataset: Dataset, rows: Sequence[Row], grade: Grade) -> Iterator[Finding]:
    name = dataset.workflow.reward_fn
    key = f"{dataset.workflow_path}.reward_fn"
    if name is None:
        yield ok(GOLD, f"{dataset.path}: workflow {dataset.workflow.workflow_cls} gives the reward itself; not checked")
        return
    chosen = rows[:: max(1, len(rows) // ROWS_GRADED)][:ROWS_GRADED]
    graded = grade(name, chosen)
    chosen = chosen[: len(graded)]
    refused = [(row, rewards) for row, rewards in zip(chosen, graded, strict=True) if not _values(rewards["gold"])]
    if refused:
        row, rewards = refused[0]
        reward = next(iter(rewards["gold"]))
        assert isinstance(reward, Invalid)
        yield error(
            GOLD,
            f"{dataset.path}: the reward of the right answer is Invalid({reward.reason}) in {len(refused)} of "
            f"{len(chosen)} rows, first for task {row['task_id']} (answer {row['answer']!r}){_detail(reward)}",
            "such samples never train: mend the reward or the row's answer",
            key,
        )
        return
    yield _compared(dataset, key, chosen, graded)


def _compared(
    dataset: Dataset, key: str, rows: Sequence[Row], graded: Sequence[Mapping[str, Sequence[Reward]]]
) -> Finding:
    gold = [max(_values(rewards["gold"])) for rewards in graded]
    wrong = [max(_values(rewards["wrong"]), default=0.0) for rewards in graded]
    zero = [row for row, value in zip(rows, gold, strict=True) if value <= 0]
    if zero:
        return error(
            GOLD,
            f"{dataset.path}: the right answer scores 0 in {len(zero)} of {len(rows)} rows, first for task "
            f"{zero[0]['task_id']} (answer {zero[0]['answer']!r})",
            "the reward does not know the dataset's answers: mend either; if answers are written in a way of their "
            "own, give it with --answer 'Result: {answer}'",
            key,
        )
    blind = sum(g <= w for g, w in zip(gold, wrong, strict=True))
    if blind:
        return warning(
            GOLD,
            f"{dataset.path}: a wrong answer scores as much as the right one in {blind} of {len(rows)} rows",
            "fine for a reward of form only; otherwise mend the reward",
            key,
        )
    scores = f"right answers score {min(gold):g} or more, wrong ones at most {max(wrong):g}"
    return ok(GOLD, f"{dataset.path}: {scores} ({len(rows)} rows)")


async def _grade(
    pool: RewardPool, name: str, rows: Sequence[Row], phrasings: Sequence[str], timeout: float
) -> list[dict[str, list[Reward]]]:
    """Rewards of each row's right answer and of a wrong one, in all phrasings, computed as a run computes them.

    Ends at the first row whose reward runs into its deadline.
    """
    target = REWARD_REGISTRY.target(name)
    served = ServedReward(target or REWARD_REGISTRY.resolve(name), pool=pool, timeout_seconds=timeout)
    reward = AsyncRewardWrapper(served)

    async def graded(row: Row, answer: object) -> list[Reward]:
        found: list[Reward] = []
        for phrasing in phrasings:
            found.append(await reward(_text(row), phrasing.format(answer=answer), [], [], **row))
            if _timed_out(found[-1]):
                break  # the others would take as long
        return found

    rewards: list[dict[str, list[Reward]]] = []
    for row in rows:
        wrong = [reward for answer in wrong_answers(row["answer"]) for reward in await graded(row, answer)]
        rewards.append({"gold": await graded(row, row["answer"]), "wrong": wrong})
        if any(map(_timed_out, rewards[-1]["gold"])):
            break
    return rewards


def wrong_answers(answer: object) -> list[str]:
    """Answers that are not right: none at all, and of a whole number the next one."""
    text = str(answer)
    return [NO_ANSWER, str(int(text) + 1)] if WHOLE.fullmatch(text) else [NO_ANSWER]


def _timed_out(reward: Reward) -> bool:
    return isinstance(reward, Invalid) and reward.reason == "timeout"


def _text(row: Row) -> str:
    return "\n".join(str(message["content"]) for message in row["messages"])


def _values(rewards: Sequence[Reward]) -> list[float]:
    return [reward.value for reward in rewards if isinstance(reward, Value)]


def _detail(reward: Invalid) -> str:
    return f": {reward.detail.splitlines()[0]}" if reward.detail else ""
