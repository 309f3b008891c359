"""Which samples of a group run, and when it closes."""

import random

import pytest

from astraflow.core.workflow.api.group import GroupPolicy
from astraflow.core.workflow.api.group_run import Action, Cut, GroupRun, Start


def policy(**fields: object) -> GroupPolicy:
    return GroupPolicy(**fields).check()  # type: ignore[arg-type]


def indexes(actions: list[Action], kind: type) -> list[int]:
    return [action.index for action in actions if isinstance(action, kind)]


def test_by_default_it_waits_for_every_sample() -> None:
    run = GroupRun(3, policy())
    assert indexes(run.begin(), Start) == [0, 1, 2]
    for index, good in [(2, True), (0, True), (1, False)]:
        assert not run.closed
        assert run.due is None
        assert run.ended(index, good, 1.0) == []
    assert run.closed


def test_over_sampling_closes_when_n_have_ended_well_and_cuts_the_rest() -> None:
    run = GroupRun(2, policy(over_sample=3))
    assert len(run.begin()) == 5
    assert run.ended(4, True, 1.0) == []
    assert run.ended(0, False, 1.1) == []  # a failed one does not count
    cuts = run.ended(3, True, 1.2)
    assert [(cut.index, cut.reason) for cut in cuts if isinstance(cut, Cut)] == [(1, "cut"), (2, "cut")]
    assert run.closed


def test_who_ends_together_with_the_last_is_cut_already() -> None:
    run = GroupRun(1, policy(over_sample=1))
    run.begin()
    assert indexes(run.ended(1, True, 1.0), Cut) == [0]
    assert run.ended(0, True, 1.0) == []
    assert run.closed


def test_shrink_cuts_who_takes_so_much_longer_than_the_quorum() -> None:
    run = GroupRun(4, policy(straggler="shrink", min_group_size=2, patience=3.0))
    run.begin()
    run.ended(0, True, 1.0)
    assert run.due is None
    run.ended(1, True, 2.0)
    assert run.due == 6.0
    assert run.looked(5.9) == []
    run.ended(2, False, 5.95)
    (cut,) = run.looked(6.0)
    assert cut == Cut(3, "straggler", "it ran 6.0 s; 2 others had ended after 2.0 s")
    assert run.closed


def test_replace_begins_another_once() -> None:
    run = GroupRun(3, policy(straggler="replace"))
    run.begin()
    for index in (0, 1):
        run.ended(index, True, 1.0)
    actions = run.looked(2.0)
    assert (indexes(actions, Cut), indexes(actions, Start)) == ([2], [3])
    assert run.due == 4.0
    assert indexes(run.looked(4.0), Cut) == [3]
    assert run.closed


@pytest.mark.parametrize(("given", "n", "quorum"), [(None, 4, 2), (None, 1, 1), (3, 4, 3), (9, 4, 4)])
def test_the_quorum(given: int | None, n: int, quorum: int) -> None:
    run = GroupRun(n, policy(straggler="shrink", min_group_size=given))
    run.begin()
    for ended in range(quorum):
        assert run.due is None
        run.ended(ended, True, 1.0)
    assert (run.due is None) == (quorum == n)


@pytest.mark.parametrize("straggler", ["wait", "shrink", "replace"])
def test_any_order_closes_with_at_most_n_good_ones_and_ends_each_once(straggler: str) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        n = chance.randint(1, 5)
        run = GroupRun(n, policy(straggler=straggler, over_sample=chance.randint(0, 3)))
        running, ended, good, now = set(indexes(run.begin(), Start)), set[int](), 0, 0.0
        for _ in range(100):
            if run.closed:
                break
            now += chance.random()
            if chance.random() < 0.4:
                actions = run.looked(now)
            else:
                index = chance.choice(sorted(running))
                running.remove(index)
                ended.add(index)
                well = chance.random() < 0.7
                good += well
                actions = run.ended(index, well, now)
            for action in actions:
                if isinstance(action, Start):
                    running.add(action.index)
                else:
                    assert action.index in running
                    running.remove(action.index)
                    ended.add(action.index)
        assert run.closed
        assert running == set()
        assert ended == set(range(len(ended)))
        assert good <= n
