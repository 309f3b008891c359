"""Invariant 4: every transition that exists, every one that does not, and counters that agree after each."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import decode, encode
from astraflow.dataflow.ledger import (
    Acknowledge,
    Curate,
    Drop,
    DropReason,
    Event,
    Expire,
    Finish,
    GroupKey,
    Issue,
    Lease,
    Ledger,
    LedgerSnapshot,
    LoseLeases,
    Requeue,
    Rewind,
    Serve,
    Settle,
    State,
)
from astraflow.errors import InvariantError

KEY = GroupKey("model0")
STEPS: list[Event] = [
    Issue(7),
    Lease((1,), "raas#1", 10.0),
    Finish(1, "raas#1", (KEY,)),
    Curate(1),
    Serve((1,), 0),
    Acknowledge("model0"),
]
STATES = [State.QUEUED, State.LEASED, State.DONE, State.READY, State.SERVED]


def after(n: int) -> Ledger:
    """A ledger whose group 1 has gone through the first n steps to training."""
    ledger = Ledger()
    for event in STEPS[:n]:
        ledger.handle(event)
    ledger.validate()
    return ledger


def test_an_occurrence_moves_from_queued_to_trained() -> None:
    ledger = Ledger()
    seen = [(moved.before, moved.after) for event in STEPS for moved in ledger.handle(event)]
    assert seen == [
        (None, State.QUEUED),
        (State.QUEUED, State.LEASED),
        (State.LEASED, None),
        (None, State.DONE),
        (State.DONE, State.READY),
        (State.READY, State.SERVED),
        (State.SERVED, State.TRAINED),
    ]
    assert ledger.counters.trained == ledger.counters.issued == 1
    assert ledger.get(1) is None
    ledger.validate()


@pytest.mark.parametrize("n", range(1, 6))
def test_each_state_is_what_the_steps_so_far_made(n: int) -> None:
    entry = after(n).get(1)
    assert entry is not None
    assert entry.state is STATES[n - 1]


ALLOWED = {
    (1, "lease"),
    (3, "curate"),
    (3, "curate_drop"),
    (4, "drop"),
    (4, "serve"),
}
MOVES: dict[str, Event] = {
    "lease": Lease((1,), "raas#2", 10.0),
    "curate": Curate(1),
    "curate_drop": Curate(1, DropReason.ZERO_ADVANTAGE),
    "drop": Drop((1,), DropReason.STALE),
    "serve": Serve((1,), 0),
}


@pytest.mark.parametrize("n", range(7))
@pytest.mark.parametrize("name", MOVES)
def test_a_move_from_another_state_is_a_bug_and_changes_nothing(n: int, name: str) -> None:
    ledger = after(n)
    if (n, name) in ALLOWED:
        assert ledger.handle(MOVES[name])
    else:
        before = ledger.counters.states.copy()
        with pytest.raises(InvariantError, match="group 1 is"):
            ledger.handle(MOVES[name])
        assert +ledger.counters.states == +before
    ledger.validate()


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 6])
def test_a_result_without_a_lease_is_an_orphan(n: int) -> None:
    ledger = after(n)
    assert ledger.handle(Finish(1, "raas#1", (KEY,))) == []
    assert ledger.counters.orphans == 1
    ledger.validate()


def test_a_result_from_another_owner_is_an_orphan() -> None:
    ledger = after(2)
    assert ledger.handle(Finish(1, "raas#2", (KEY,))) == []
    assert ledger.get(1) is not None
    assert ledger.get(1).state is State.LEASED


@pytest.mark.parametrize(
    ("event", "requeued"),
    [
        (LoseLeases("raas#1"), [1, 2]),
        (LoseLeases("raas#1", (2,)), [2]),
        (LoseLeases("raas#1", (2, 9)), [2]),
        (LoseLeases("raas#2"), []),
        (Expire(9.9), []),
        (Expire(10.0), [1, 2]),
    ],
)
def test_lost_leases_go_to_the_head_of_the_queue_oldest_first(event: Event, requeued: list[int]) -> None:
    ledger = Ledger()
    for prompt in range(3):
        ledger.handle(Issue(prompt))
    ledger.handle(Lease((1, 2), "raas#1", 10.0))
    ledger.handle(event)
    assert ledger.queued(9) == [*requeued, 3]
    assert ledger.leased_to("raas#1") == 2 - len(requeued)
    assert ledger.counters.lost_leases == len(requeued)
    ledger.validate()


@pytest.mark.parametrize("reason", DropReason)
def test_a_finished_occurrence_without_groups_is_dropped_with_its_reason(reason: DropReason) -> None:
    ledger = after(2)
    (moved,) = ledger.handle(Finish(1, "raas#1", (), reason))
    assert (moved.before, moved.after, moved.reason, moved.owner) == (State.LEASED, State.DROPPED, reason, "raas#1")
    assert ledger.counters.dropped == {reason: 1}
    ledger.validate()


def test_without_groups_and_reason_it_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="without a reason"):
        after(2).handle(Finish(1, "raas#1", ()))


def test_an_occurrence_of_several_policies_becomes_groups_that_move_alone() -> None:
    ledger = after(2)
    moves = ledger.handle(Finish(1, "raas#1", (GroupKey("a"), GroupKey("b"), GroupKey("b", "checker"))))
    assert [(m.group_id, m.model_id) for m in moves] == [(1, ""), (1, "a"), (2, "b"), (3, "b")]
    assert ledger.counters.issued == 3
    for group_id in (1, 2, 3):
        ledger.handle(Curate(group_id))
    ledger.handle(Serve((1,), 0))
    ledger.handle(Serve((2, 3), 0))
    assert len(ledger.handle(Acknowledge("b"))) == 2
    assert ledger.counters.in_flight == 1
    ledger.validate()


def test_a_batch_is_of_one_model_and_one_at_a_time() -> None:
    ledger = after(2)
    ledger.handle(Finish(1, "raas#1", (GroupKey("a"), GroupKey("b"), GroupKey("b"))))
    for group_id in (1, 2, 3):
        ledger.handle(Curate(group_id))
    with pytest.raises(InvariantError, match="a batch of"):
        ledger.handle(Serve((1, 2), 0))
    ledger.handle(Serve((2,), 0))
    with pytest.raises(InvariantError, match="not acknowledged"):
        ledger.handle(Serve((3,), 0))
    with pytest.raises(InvariantError, match="twice"):
        ledger.handle(Serve((1, 1), 0))
    ledger.validate()


def trained_once() -> Ledger:
    """Group 1 was trained by step 1; groups 2 and 3 are ready."""
    ledger = Ledger()
    for group_id in (1, 2, 3):
        for event in (Issue(0), Lease((group_id,), "a", 1.0), Finish(group_id, "a", (KEY,)), Curate(group_id)):
            ledger.handle(event)
    ledger.handle(Serve((1,), 0))
    ledger.handle(Acknowledge("model0", 1))
    return ledger


def test_a_replay_takes_a_place_and_changes_no_state() -> None:
    ledger = trained_once()
    moves = ledger.handle(Serve((2,), 1, (1,)))
    assert [(m.group_id, m.before, m.after) for m in moves] == [
        (2, State.READY, State.SERVED),
        (1, None, State.SERVED),
    ]
    assert (ledger.served("model0"), ledger.replays("model0")) == ([2], [1])
    ledger.validate()
    ledger = Ledger.restored(decode(encode(ledger.snapshot()), LedgerSnapshot))
    assert [m.group_id for m in ledger.handle(Acknowledge("model0", 2))] == [2, 1]
    c = ledger.counters
    assert (c.trained, c.replayed, c.issued, c.in_flight) == (2, 1, 3, 1)
    assert ledger.trained("model0") == [1, 2]
    ledger.validate()


def test_what_a_batch_replays_is_not_settled_before_it_is_trained() -> None:
    ledger = trained_once()
    ledger.handle(Serve((2,), 1, (1,)))
    with pytest.raises(InvariantError, match="cannot be settled"):
        ledger.handle(Settle("model0", 1))
    ledger.handle(Settle("model0", 0))
    ledger.handle(Acknowledge("model0", 2))
    ledger.handle(Settle("model0", 1))
    assert ledger.trained("model0") == [2]


def test_going_back_takes_replays_back_too() -> None:
    ledger = trained_once()
    ledger.handle(Serve((2,), 1, (1,)))
    ledger.handle(Acknowledge("model0", 2))
    ledger.handle(Serve((3,), 2, (2, 1)))
    assert [m.group_id for m in ledger.handle(Rewind("model0", 1))] == [2, 3]
    assert (ledger.counters.trained, ledger.counters.replayed, ledger.replays("model0")) == (1, 0, [])
    ledger.validate()


@pytest.mark.parametrize("replayed", [(2,), (1, 1), (9,)])
def test_only_what_was_trained_and_is_not_settled_is_replayed_once_a_batch(replayed: tuple[int, ...]) -> None:
    ledger = trained_once()
    with pytest.raises(InvariantError, match="cannot be replayed for model0"):
        ledger.handle(Serve((3,), 1, replayed))
    ledger.handle(Settle("model0", 1))
    with pytest.raises(InvariantError, match="cannot be replayed for model0"):
        ledger.handle(Serve((3,), 1, (1,)))
    ledger.validate()


def test_acknowledging_nothing_moves_nothing() -> None:
    assert Ledger().handle(Acknowledge("model0")) == []


def test_numbers_continue_an_earlier_ledger() -> None:
    assert Ledger(first_group_id=41).handle(Issue(0))[0].group_id == 41


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_random_histories_conserve_every_group(seed: int, steps: int) -> None:
    """Any order of issuing, leasing, deaths, late and double results, curation, serving and acknowledging."""
    chance = random.Random(seed)
    ledger = Ledger()
    owners = ["a#1", "b#2", "c#3"]
    trained = 0
    for now in range(steps):
        groups = range(1, ledger.counters.issued + 2)
        entries = [e for g in groups if (e := ledger.get(g)) is not None]
        done = [e.group_id for e in entries if e.state is State.DONE]
        ready = [e.group_id for e in entries if e.state is State.READY]
        match chance.randrange(8):
            case 0 | 1:
                ledger.handle(Issue(chance.randrange(9)))
            case 2 if ledger.queued(1):
                ids = ledger.queued(chance.randint(1, 3))
                ledger.handle(Lease(tuple(ids), chance.choice(owners), now + chance.randint(1, 9)))
            case 3:
                keys = tuple(GroupKey(model) for model in chance.sample(["x", "y"], chance.randint(0, 2)))
                ledger.handle(Finish(chance.choice(groups), chance.choice(owners), keys, DropReason.REJECTED))
            case 4:
                owner = chance.choice(owners)
                ledger.handle(LoseLeases(owner) if chance.random() < 0.5 else Expire(now))
            case 5 if done:
                ledger.handle(Curate(chance.choice(done), chance.choice([None, DropReason.INVALID])))
            case 6 if ready:
                ledger.handle(Drop((chance.choice(ready),), DropReason.STALE))
            case 7:
                model = chance.choice(["x", "y"])
                trained += len(ledger.handle(Acknowledge(model)))
                mine = tuple(g for g in ready if ledger.get(g).key.model_id == model)
                if mine:
                    ledger.handle(Serve(mine, now))
        ledger.validate()
    c = ledger.counters
    assert c.trained == trained
    assert c.issued == c.trained + c.dropped.total() + c.in_flight


def trained_in_steps(*batches: tuple[int, ...]) -> Ledger:
    """Each batch's groups went all the way, one step after another."""
    ledger = Ledger()
    for step, batch in enumerate(batches, 1):
        for group_id in batch:
            for event in (Issue(0), Lease((group_id,), "a", 1.0), Finish(group_id, "a", (KEY,)), Curate(group_id)):
                ledger.handle(event)
        ledger.handle(Serve(batch, step - 1))
        ledger.handle(Acknowledge("model0", step))
    ledger.validate()
    return ledger


def test_a_rewind_makes_later_steps_and_the_served_batch_ready_again() -> None:
    ledger = trained_in_steps((1,), (2, 3), (4,))
    for event in (Issue(0), Lease((5,), "a", 1.0), Finish(5, "a", (KEY,)), Curate(5), Serve((5,), 3)):
        ledger.handle(event)
    assert ledger.trained("model0", after=1) == [2, 3, 4]
    moves = ledger.handle(Rewind("model0", 1))
    assert [(m.group_id, m.before, m.after) for m in moves] == [
        (2, State.TRAINED, State.READY),
        (3, State.TRAINED, State.READY),
        (4, State.TRAINED, State.READY),
        (5, State.SERVED, State.READY),
    ]
    assert (ledger.counters.trained, ledger.counters.rewound, ledger.served("model0")) == (1, 3, [])
    ledger.validate()
    assert ledger.handle(Rewind("model0", 1)) == []


def test_what_is_settled_is_never_taken_back() -> None:
    ledger = trained_in_steps((1,), (2,), (3,))
    ledger.handle(Settle("model0", 2))
    assert ledger.kept == {3}
    assert [m.group_id for m in ledger.handle(Rewind("model0", 0))] == [3]
    assert ledger.counters.trained == 2
    ledger.validate()


def test_a_requeued_group_is_its_occurrence_again_at_the_head_of_the_queue() -> None:
    ledger = trained_in_steps((1,), (2,))
    ledger.handle(Issue(7))
    ledger.handle(Rewind("model0", 0))
    moves = ledger.handle(Requeue((2, 1)))
    assert [(m.group_id, m.before, m.after, m.model_id) for m in moves] == [
        (2, State.READY, None, "model0"),
        (2, None, State.QUEUED, ""),
        (1, State.READY, None, "model0"),
        (1, None, State.QUEUED, ""),
    ]
    assert ledger.queued(5) == [1, 2, 3]
    ledger.validate()
    with pytest.raises(InvariantError, match="is queued, expected done or ready"):
        ledger.handle(Requeue((1,)))


def test_an_occurrence_that_runs_again_for_one_of_its_groups_gives_that_one() -> None:
    ledger, a, b = after(2), GroupKey("a"), GroupKey("b")
    ledger.handle(Finish(1, "raas#1", (a, b)))
    ledger.handle(Curate(1))
    ledger.handle(Requeue((1,)))
    ledger.handle(Lease((1,), "raas#1", 10.0))
    with pytest.raises(InvariantError, match="runs again for"):
        ledger.handle(Finish(1, "raas#1", (a, b)))
    assert [m.model_id for m in ledger.handle(Finish(1, "raas#1", (a,)))] == ["", "a"]
    assert ledger.counters.issued == 2
    ledger.validate()


@given(seed=st.integers(0, 2**32))
def test_random_histories_with_recoveries_train_each_group_once(seed: int) -> None:
    """Restarts from a snapshot and trainers that go back, anywhere; what the trainer learnt is what the ledger says."""
    chance, ledger = random.Random(seed), Ledger()
    learnt: dict[int, tuple[int, ...]] = {}
    again: dict[int, int] = {}
    settled = step = 0
    for _ in range(150):
        entries = [e for g in range(1, ledger.counters.issued + 1) if (e := ledger.get(g)) is not None]
        by_state = {state: [e.group_id for e in entries if e.state is state] for state in State}
        match chance.randrange(10):
            case 0 | 1:
                ledger.handle(Issue(0))
            case 2 if ledger.queued(1):
                ledger.handle(Lease(tuple(ledger.queued(2)), "a", 1.0))
            case 3 | 4 if by_state[State.LEASED]:
                ledger.handle(Finish(chance.choice(by_state[State.LEASED]), "a", (KEY,)))
            case 5 if by_state[State.DONE]:
                ledger.handle(Curate(chance.choice(by_state[State.DONE])))
            case 6 if by_state[State.READY] and not ledger.served("model0"):
                known = ledger.trained("model0")
                replayed = tuple(chance.sample(known, chance.randint(0, min(2, len(known)))))
                ledger.handle(Serve(tuple(by_state[State.READY][:2]), step, replayed))
            case 7 if ledger.served("model0"):
                step += 1
                learnt[step] = tuple(ledger.served("model0"))
                again[step] = len(ledger.replays("model0"))
                ledger.handle(Acknowledge("model0", step))
            case 8:
                step = chance.randint(settled, step)
                learnt = {s: groups for s, groups in learnt.items() if s <= step}
                again = {s: n for s, n in again.items() if s <= step}
                back = [move.group_id for move in ledger.handle(Rewind("model0", step))]
                if back:
                    ledger.handle(Requeue(tuple(chance.sample(back, chance.randint(1, len(back))))))
            case 9:
                if chance.random() < 0.5 and not ledger.replays("model0"):
                    settled = chance.randint(settled, step)
                    ledger.handle(Settle("model0", settled))
                ledger = Ledger.restored(decode(encode(ledger.snapshot()), LedgerSnapshot))
        ledger.validate()
    trained = [group_id for groups in learnt.values() for group_id in groups]
    assert len(trained) == len(set(trained)) == ledger.counters.trained
    assert ledger.counters.replayed == sum(again.values())
    assert ledger.counters.asked == ledger.counters.issued
