"""Invariant 4, exactly once: every prompt occurrence moves

    queued → leased → done → ready → served → trained
                 ↘      ↘       ↘
                         dropped(reason)

and in two cases back: when a trainer is restored at an earlier step, what it was served or has trained since is ready
again (Rewind); and what cannot be trained as it is, its tokens of an abandoned lineage, is queued again (Requeue). An
occurrence is queued or leased as one; when its rollout ends it becomes its groups (one per model and agent role), and
from `done` on each group moves by itself. A lease that is lost puts the occurrence back at the head of the queue. What
has ended leaves memory, what was trained once its step is settled, and stays in the counters, which agree at every
moment (LAW 30):

    issued = trained + dropped by reason + in flight

A lease is one value: the group, its owner, and which attempt at the group it is. What names another than the current
one, a result that is late or comes twice, or leases given back too late, is an orphan and changes nothing.

A batch may hold groups again that earlier steps trained, on purpose (Serve.replayed). That changes the state of none
and is counted apart.

Relied on by admission (credit follows `Moved`), by serving (idempotent batches) and by the pool (a dead instance's
leases). No IO and no clock: `handle(event)` returns what moved, so a durable store needs only to write events and to
read them back in order. Trajectories are never in it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Any, assert_never

from astraflow.core.data import LeaseId
from astraflow.dataflow.ledger_entries import Counters, Entry, LedgerSnapshot
from astraflow.dataflow.ledger_events import (
    ACCEPTED,
    RUNNING,
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
    LoseLeases,
    Moved,
    Orphan,
    Requeue,
    Rewind,
    Serve,
    Settle,
    State,
    Visit,
)
from astraflow.errors import InvariantError

__all__ = [
    "ACCEPTED", "RUNNING", "Acknowledge", "Counters", "Curate", "Drop", "DropReason", "Entry", "Event", "Expire",
    "Finish", "GroupKey", "Issue", "Lease", "Ledger", "LedgerSnapshot", "LoseLeases", "Moved", "Orphan", "Requeue",
    "Rewind", "Serve", "Settle", "State", "Visit",
]  # fmt: skip


class Ledger:
    """The state of every occurrence. `first_group_id` continues the numbers of an earlier ledger."""

    def __init__(self, first_group_id: int = 1) -> None:
        self.counters = Counters()
        self._next = first_group_id
        self._entries: dict[int, Entry] = {}
        # ordered sets: what was lost goes back to the head, whatever its age
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._leased: dict[str, set[int]] = {}
        self._served: dict[str, list[int]] = {}
        # model → step → what it trained, as long as that can be taken back
        self._retained: dict[str, dict[int, list[Entry]]] = {}
        # model → replays in the batch that waits; model → step → how many it trained, as long as it can be taken back
        self._replays: dict[str, list[int]] = {}
        self._replayed_at: dict[str, dict[int, int]] = {}
        self._settled: dict[str, int] = {}

    @classmethod
    def restored(cls, snapshot: LedgerSnapshot) -> Ledger:
        """The ledger that a snapshot was taken of."""
        ledger = cls(snapshot.next_group_id)
        ledger._entries = {entry.group_id: entry for entry in snapshot.entries}
        ledger._queue = OrderedDict.fromkeys(snapshot.queue)
        for entry in snapshot.entries:
            if entry.state is State.LEASED:
                ledger._leased.setdefault(entry.owner, set()).add(entry.group_id)
        ledger._served = dict(snapshot.served)
        ledger._retained = snapshot.retained
        ledger._replays, ledger._replayed_at = dict(snapshot.replays), snapshot.replayed_at
        ledger._settled = dict(snapshot.settled)
        c = ledger.counters
        c.trained, c.dropped = snapshot.trained, Counter(snapshot.dropped)
        c.states = Counter(entry.state for entry in snapshot.entries)
        c.issued = c.trained + c.dropped.total() + len(snapshot.entries)
        c.orphans, c.lost_leases, c.rewound, c.asked, c.replayed = (
            snapshot.orphans, snapshot.lost_leases, snapshot.rewound, snapshot.asked, snapshot.replayed,
        )  # fmt: skip
        return ledger

    def snapshot(self) -> LedgerSnapshot:
        """All that `restored` needs."""
        c = self.counters
        return LedgerSnapshot(
            next_group_id=self._next,
            trained=c.trained,
            dropped=dict(c.dropped),
            orphans=c.orphans,
            lost_leases=c.lost_leases,
            rewound=c.rewound,
            asked=c.asked,
            entries=list(self._entries.values()),
            queue=list(self._queue),
            served=self._served,
            retained=self._retained,
            replays=self._replays,
            replayed_at=self._replayed_at,
            replayed=c.replayed,
            settled=self._settled,
        )

    def handle(self, event: Event) -> list[Moved]:
        """Apply one event; InvariantError, and nothing changed, if it is against the states."""
        match event:
            case Issue():
                return [self._issue(event)]
            case Lease():
                return self._lease(event)
            case LoseLeases():
                if event.group_ids is None:
                    return self._requeue(self._leased.get(event.owner, set()))
                return self._requeue({lease.group_id for lease in event.leases if self.holds(lease)})
            case Expire():
                late = [
                    group_id
                    for held in self._leased.values()
                    for group_id in held
                    if self._entries[group_id].deadline <= event.now
                ]
                return self._requeue(late)
            case Finish():
                return self._finish(event)
            case Orphan():
                self.counters.orphans += 1
                return []
            case Curate():
                self._expect((event.group_id,), State.DONE)
                if event.drop:
                    return [self._drop(event.group_id, event.drop)]
                self._entries[event.group_id].samples = event.samples
                return [self._ready(event.group_id)]
            case Drop():
                self._expect(event.group_ids, State.READY)
                return [self._drop(group_id, event.reason) for group_id in event.group_ids]
            case Serve():
                return self._serve(event)
            case Acknowledge():
                return self._acknowledge(event)
            case Rewind():
                return self._rewind(event)
            case Requeue():
                return self._again(event)
            case Settle():
                self._settle(event)
                return []
            case _:
                assert_never(event)

    def get(self, group_id: int) -> Entry | None:
        """What is known of a group in flight; None once it has ended. Not to be changed."""
        return self._entries.get(group_id)

    def holds(self, lease: LeaseId) -> bool:
        """Is this lease the current one of its group?"""
        entry = self._entries.get(lease.group_id)
        return entry is not None and entry.holds(lease)

    def late(self, now: float) -> list[LeaseId]:
        """Leases whose deadline is over, by the clock of this process."""
        leased = (self._entries[group_id] for held in self._leased.values() for group_id in held)
        return [entry.lease for entry in leased if entry.deadline <= now]

    def take_over(self, deadline: float) -> list[LeaseId]:
        """Give the leases that outlived their process a deadline of this one's clock; returns them.

        No event, since nothing in a log may depend on a clock: that of a process says nothing to another.
        """
        taken = [self._entries[group_id] for held in self._leased.values() for group_id in held]
        for entry in taken:
            entry.deadline = deadline
        return [entry.lease for entry in taken]

    def queued(self, most: int) -> list[int]:
        """The next occurrences to lease, in order."""
        return list(islice(self._queue, most))

    @property
    def owners(self) -> list[str]:
        """Who holds leases."""
        return list(self._leased)

    def served(self, model_id: str) -> list[int]:
        """The groups of the batch that waits for acknowledgement, in order."""
        return list(self._served.get(model_id, ()))

    def replays(self, model_id: str) -> list[int]:
        """The groups of the batch that waits for acknowledgement which earlier steps trained, in order."""
        return list(self._replays.get(model_id, ()))

    def trained(self, model_id: str, after: int = -1, up_to: int | None = None) -> list[int]:
        """Groups that steps after `after`, up to `up_to`, trained and that are not settled, in order."""
        steps = self._retained.get(model_id, {})
        chosen = [step for step in sorted(steps) if after < step and (up_to is None or step <= up_to)]
        return [entry.group_id for step in chosen for entry in steps[step]]

    def settled(self, model_id: str) -> int:
        """The last step of a model whose groups were let go; 0 for none. What follows it can be taken back."""
        return self._settled.get(model_id, 0)

    def held_samples(self, model_id: str, n: int) -> int:
        """Samples, n of a whole group, of a model's groups that are done, ready or served, replays included."""
        mine = [e for e in self._entries.values() if e.key is not None and e.key.model_id == model_id]
        again, trained = self.replays(model_id), self._samples_of(model_id)
        return sum(e.samples or n for e in mine) + sum(trained[group_id] or n for group_id in again)

    @property
    def kept(self) -> set[int]:
        """What may be needed again: all that is in flight, and trained steps that are not settled."""
        retained = (e.group_id for steps in self._retained.values() for entries in steps.values() for e in entries)
        return {*self._entries, *retained}

    def groups(self, state: State, model_id: str) -> list[int]:
        """A model's groups in a state from done on, in order of issue."""
        entries = self._entries.values()
        return [e.group_id for e in entries if e.state is state and e.key is not None and e.key.model_id == model_id]

    def leased_to(self, owner: str) -> int:
        """Leases that an owner holds."""
        return len(self._leased.get(owner, ()))

    def leased(self, owner: str) -> list[int]:
        """What an owner has leased, the oldest first."""
        return sorted(self._leased.get(owner, ()))

    def validate(self) -> None:
        """Raise InvariantError unless all indexes and counters agree."""
        by_state = Counter(entry.state for entry in self._entries.values())
        c = self.counters
        checks = {
            "issued = trained + dropped + in flight": c.issued == c.trained + c.dropped.total() + len(self._entries),
            "state counters": +c.states == by_state,
            "queue": set(self._queue) == {g for g, e in self._entries.items() if e.state is State.QUEUED},
            "leases": {(g, o) for o, held in self._leased.items() for g in held}
            == {(g, e.owner) for g, e in self._entries.items() if e.state is State.LEASED},
            "served": sorted(g for served in self._served.values() for g in served)
            == sorted(g for g, e in self._entries.items() if e.state is State.SERVED),
            "replays were trained": all(
                set(replays) <= set(self.trained(model_id)) for model_id, replays in self._replays.items()
            ),
            "nothing is both in flight and trained": not any(
                e.group_id in self._entries for steps in self._retained.values() for t in steps.values() for e in t
            ),
            "groups have a model from done on": all(
                (e.key is None) == (e.state in RUNNING) for e in self._entries.values()
            ),
        }
        broken = [name for name, holds in checks.items() if not holds]
        if broken:
            raise InvariantError(f"the ledger is inconsistent: {'; '.join(broken)}")

    def _issue(self, event: Issue) -> Moved:
        entry = self._add(event.prompt_id, event.epoch, State.QUEUED)
        self.counters.asked += 1
        self._queue[entry.group_id] = None
        return Moved(entry.group_id, None, State.QUEUED)

    def _add(self, prompt_id: int, epoch: int, state: State, key: GroupKey | None = None) -> Entry:
        entry = Entry(self._next, prompt_id, epoch, state, key)
        self._next += 1
        self._entries[entry.group_id] = entry
        self.counters.issued += 1
        self.counters.states[state] += 1
        return entry

    def _lease(self, event: Lease) -> list[Moved]:
        self._expect(event.group_ids, State.QUEUED)
        moved = []
        for group_id in event.group_ids:
            del self._queue[group_id]
            entry = self._entries[group_id]
            entry.owner, entry.deadline = event.owner, event.deadline
            entry.leases += 1
            self._leased.setdefault(event.owner, set()).add(group_id)
            moved.append(self._move(entry, State.LEASED, owner=event.owner))
        return moved

    def _requeue(self, group_ids: set[int] | list[int]) -> list[Moved]:
        moved = []
        lost = sorted(group_ids)
        for group_id in lost:
            entry = self._entries[group_id]
            owner = self._end_lease(entry)
            self.counters.lost_leases += 1
            moved.append(self._move(entry, State.QUEUED, owner=owner))
        self._to_head(lost)
        return moved

    def _to_head(self, group_ids: Iterable[int]) -> None:
        # the newest first, so that the oldest ends up at the head
        for group_id in sorted(group_ids, reverse=True):
            self._queue[group_id] = None
            self._queue.move_to_end(group_id, last=False)

    def _finish(self, event: Finish) -> list[Moved]:
        entry = self._entries.get(event.group_id)
        if entry is None or not entry.holds(event.lease):
            self.counters.orphans += 1
            return []
        if not event.groups and event.drop is None:
            raise InvariantError(f"group {event.group_id} ended without groups and without a reason")
        if event.groups and entry.only is not None and event.groups != (entry.only,):
            raise InvariantError(f"group {event.group_id} runs again for {entry.only}, ended as {event.groups}")
        owner = self._end_lease(entry)
        if not event.groups:
            return [self._drop(event.group_id, event.drop, owner)]
        moved = [Moved(entry.group_id, State.LEASED, None, owner=owner)]
        self.counters.states[State.LEASED] -= 1
        self.counters.states[State.DONE] += 1
        entry.state, entry.key = State.DONE, event.groups[0]
        entry.shared = entry.shared or len(event.groups) > 1
        moved.append(Moved(entry.group_id, None, State.DONE, entry.key.model_id))
        for key in event.groups[1:]:
            further = self._add(entry.prompt_id, entry.epoch, State.DONE, key)
            further.shared = True
            moved.append(Moved(further.group_id, None, State.DONE, key.model_id))
        return moved

    def _end_lease(self, entry: Entry) -> str:
        owner, entry.owner = entry.owner, ""
        held = self._leased[owner]
        held.remove(entry.group_id)
        if not held:
            del self._leased[owner]
        return owner

    def _ready(self, group_id: int) -> Moved:
        return self._move(self._entries[group_id], State.READY)

    def _drop(self, group_id: int, reason: DropReason | None, owner: str = "") -> Moved:
        if reason is None:
            raise InvariantError(f"group {group_id} is dropped without a reason")
        entry = self._entries.pop(group_id)
        self.counters.states[entry.state] -= 1
        self.counters.dropped[reason] += 1
        model_id = entry.key.model_id if entry.key else ""
        return Moved(group_id, entry.state, State.DROPPED, model_id, owner, reason, entry.samples)

    def _serve(self, event: Serve) -> list[Moved]:
        self._expect(event.group_ids, State.READY)
        models = {self._model_of(group_id) for group_id in event.group_ids}
        if len(models) != 1 or models & self._served.keys():
            raise InvariantError(f"version {event.version}: a batch of {sorted(models)} while one is not acknowledged")
        model_id = models.pop()
        if event.replayed and not self._may_replay(model_id, event.replayed):
            raise InvariantError(f"version {event.version}: {event.replayed} cannot be replayed for {model_id}")
        self._served[model_id] = list(event.group_ids)
        moved = []
        for group_id in event.group_ids:
            self._entries[group_id].version = event.version
            moved.append(self._move(self._entries[group_id], State.SERVED))
        if event.replayed:
            self._replays[model_id] = list(event.replayed)
        samples = self._samples_of(model_id) if event.replayed else {}
        return [*moved, *(Moved(g, None, State.SERVED, model_id, samples=samples[g]) for g in event.replayed)]

    def _samples_of(self, model_id: str) -> dict[int, int]:
        """Trained, not settled group → its samples."""
        return {e.group_id: e.samples for entries in self._retained.get(model_id, {}).values() for e in entries}

    def _may_replay(self, model_id: str, group_ids: tuple[int, ...]) -> bool:
        return len(set(group_ids)) == len(group_ids) and set(group_ids) <= set(self.trained(model_id))

    def _acknowledge(self, event: Acknowledge) -> list[Moved]:
        group_ids = self._served.pop(event.model_id, [])
        replays = self._replays.pop(event.model_id, [])
        entries = [self._entries.pop(group_id) for group_id in group_ids]
        if event.step >= 0 and entries:
            self._retained.setdefault(event.model_id, {})[event.step] = entries
        if event.step >= 0 and replays:
            self._replayed_at.setdefault(event.model_id, {})[event.step] = len(replays)
        for entry in entries:
            entry.state = State.TRAINED
        self.counters.states[State.SERVED] -= len(group_ids)
        self.counters.trained += len(group_ids)
        self.counters.replayed += len(replays)
        known = self._samples_of(event.model_id) if replays else {}
        samples = {**{entry.group_id: entry.samples for entry in entries}, **{g: known[g] for g in replays}}
        return [Moved(g, State.SERVED, State.TRAINED, event.model_id, samples=n) for g, n in samples.items()]

    def _rewind(self, event: Rewind) -> list[Moved]:
        steps = self._retained.get(event.model_id, {})
        trained = [entry for step in sorted(steps) if step > event.step for entry in steps.pop(step)]
        self.counters.trained -= len(trained)
        self.counters.rewound += len(trained)
        self.counters.states[State.TRAINED] += len(trained)
        self._entries.update((entry.group_id, entry) for entry in trained)
        served = self._served.pop(event.model_id, [])
        self._replays.pop(event.model_id, None)
        replayed = self._replayed_at.get(event.model_id, {})
        self.counters.replayed -= sum(replayed.pop(step) for step in [step for step in replayed if step > event.step])
        return [self._ready(group_id) for group_id in (*(entry.group_id for entry in trained), *served)]

    def _settle(self, event: Settle) -> None:
        if set(self._replays.get(event.model_id, ())) & set(self.trained(event.model_id, up_to=event.step)):
            raise InvariantError(f"step {event.step} of {event.model_id} cannot be settled: the batch replays it")
        self._settled[event.model_id] = max(event.step, self.settled(event.model_id))
        for kept in (self._retained, self._replayed_at):
            steps: dict[int, Any] = kept.get(event.model_id, {})
            for step in [step for step in steps if step <= event.step]:
                del steps[step]

    def _again(self, event: Requeue) -> list[Moved]:
        self._expect(event.group_ids, State.DONE, State.READY)
        moved = []
        for group_id in event.group_ids:
            entry = self._entries[group_id]
            assert entry.key is not None
            moved.append(Moved(group_id, entry.state, None, entry.key.model_id, samples=entry.samples))
            self.counters.states[entry.state] -= 1
            self.counters.states[State.QUEUED] += 1
            # the occurrence's other groups, where it had any, go their own way: it runs for this one alone
            entry.only = entry.key if entry.shared else None
            entry.state, entry.key, entry.samples = State.QUEUED, None, 0
            moved.append(Moved(group_id, None, State.QUEUED))
        self._to_head(event.group_ids)
        return moved

    def _move(self, entry: Entry, after: State, owner: str = "") -> Moved:
        before, entry.state = entry.state, after
        self.counters.states[before] -= 1
        self.counters.states[after] += 1
        model_id = entry.key.model_id if entry.key else ""
        return Moved(entry.group_id, before, after, model_id, owner, samples=entry.samples)

    def _model_of(self, group_id: int) -> str:
        key = self._entries[group_id].key
        return key.model_id if key else ""

    def _expect(self, group_ids: tuple[int, ...], *states: State) -> None:
        if len(set(group_ids)) != len(group_ids):
            raise InvariantError(f"groups {group_ids} are named twice in one event")
        for group_id in group_ids:
            entry = self._entries.get(group_id)
            if entry is None or entry.state not in states:
                found = "unknown or ended" if entry is None else entry.state
                raise InvariantError(f"group {group_id} is {found}, expected {' or '.join(states)}")
