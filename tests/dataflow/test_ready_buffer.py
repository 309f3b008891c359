"""The order in which ready groups are served, and which one a full buffer lets go."""

import msgspec
import pytest

from astraflow.core.data import Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.ready_buffer import ReadyBuffer
from astraflow.dataflow.scripted import trajectory
from astraflow.errors import UnknownNameError


def group(group_id: int, prompt_id: int = 0, agent: str = "") -> Group:
    return Group(group_id=group_id, task_id="t", prompt_id=prompt_id, model_id="m", agent=agent, trajectories=())


def filled(order: str, steps: list[int], most: int | None = None) -> tuple[ReadyBuffer, list[int]]:
    """A buffer that groups 0, 1, … of these steps were put into, and who had to go."""
    buffer = ReadyBuffer(order, most)
    return buffer, [gone.group_id for i, step in enumerate(steps) for gone in buffer.add(group(i), step)]


@pytest.mark.parametrize(
    ("order", "steps", "served"),
    [
        ("edf", [7, 3, 5, 3], [1, 3, 2, 0]),
        ("fifo", [7, 3, 5, 3], [0, 1, 2, 3]),
        ("edf", [2, 2, 2], [0, 1, 2]),
        ("edf", [], []),
    ],
)
def test_order(order: str, steps: list[int], served: list[int]) -> None:
    assert [g.group_id for g in filled(order, steps)[0].take(len(steps))] == served


def test_an_unknown_order_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown buffer order 'lifo'.*known: edf, fifo"):
        ReadyBuffer("lifo")


@pytest.mark.parametrize(("order", "gone", "kept"), [("fifo", [0, 1], [2, 3]), ("edf", [1, 3], [2, 0])])
def test_a_full_buffer_lets_go_of_what_is_next(order: str, gone: list[int], kept: list[int]) -> None:
    buffer, evicted = filled(order, [7, 3, 5, 3], most=2)
    assert evicted == gone
    assert [g.group_id for g in buffer.take(9)] == kept


def test_taking_the_old_ones_leaves_the_rest_in_order() -> None:
    buffer, _ = filled("fifo", [7, 3, 5, 3, 8])
    assert [g.group_id for g in buffer.take(1)] == [0]
    assert [g.group_id for g in buffer.take_older(5)] == [1, 3]
    assert [g.group_id for g in buffer.take_older(9)] == [2, 4]
    assert len(buffer) == 0


def test_it_knows_which_prompts_wait_by_role() -> None:
    buffer = ReadyBuffer()
    buffer.add(group(1, prompt_id=5), 0)
    buffer.add(group(2, prompt_id=5), 0)
    assert buffer.holds(group(3, prompt_id=5))
    assert not buffer.holds(group(3, prompt_id=6))
    assert not buffer.holds(group(3, prompt_id=5, agent="critic"))
    buffer.take(1)
    assert buffer.holds(group(3, prompt_id=5))
    buffer.take(1)
    assert not buffer.holds(group(3, prompt_id=5))


def test_taking_by_samples_takes_whole_groups_until_there_are_enough() -> None:
    buffer = ReadyBuffer()
    for number, samples in enumerate((3, 2, 4, 1)):
        task = m.Task(task_id="t", group_id=number, data={})
        rows = tuple(trajectory(task, i, Value(1.0), (0,)) for i in range(samples))
        buffer.add(msgspec.structs.replace(group(number), trajectories=rows), 0)
    assert buffer.samples == 10
    assert [g.group_id for g in buffer.take_samples(4)] == [0, 1]
    assert [g.group_id for g in buffer.take_samples(0)] == [2]
    assert buffer.samples == 1
