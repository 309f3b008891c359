"""Ledger, credit and room follow one entry: whatever happens, they agree, and the bounds hold."""

import random

from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.protocol.messages import RegisterRaaSRequest
from astraflow.dataflow.books import Books
from astraflow.dataflow.ledger import (
    Acknowledge,
    Curate,
    Drop,
    DropReason,
    Expire,
    Finish,
    GroupKey,
    Issue,
    Lease,
    Ledger,
    LoseLeases,
    Serve,
    State,
)
from astraflow.dataflow.policies import Published
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.routing import fit, share_out
from astraflow.dataflow.scripted import manifest
from astraflow.dataflow.staleness import Admission

KEY = GroupKey("model0")


class World:
    """A model of a run: RaaS that die and come back, results late, doubled or failed, a trainer that steps."""

    def __init__(self, chance: random.Random, batch: int, eta: int) -> None:
        self.chance = chance
        self.pool = RaaSPool(["model0"])
        self.books = Books(Ledger(), self.pool)
        self.admission = Admission(batch, eta)
        self.books.admit("model0", self.admission)
        self.batch, self.eta, self.step, self.now = batch, eta, 0, 0.0
        self.born: dict[int, int] = {}
        """group → step of the version its oldest token has."""
        self.ready: list[int] = []
        self.served: list[int] = []
        self.sent: list[tuple[str, int]] = []
        self.trained: list[int] = []
        self.publish(0)

    def publish(self, step: int) -> None:
        self.pool.versions.publish(Published("model0", step, step, "h:1", manifest(step)))

    def register(self) -> None:
        uid = self.chance.choice("abc")
        request = RegisterRaaSRequest(
            uid=uid, raas_url=f"http://{self.chance.choice('xy')}", capabilities={"max_concurrency": 3}
        )
        registration = self.pool.register(request, self.now)
        if registration.replaced is not None:
            self.books.record(LoseLeases(registration.replaced.key))
        self.pool.prepared(registration.instance.key, 0.0)

    def pull(self) -> None:
        for instance in self.pool.live:
            target = self.pool.target(instance.key)
            if target is not None and self.chance.random() < 0.5:
                assert self.pool.proved(instance.key, "model0", target.version, target.manifest.digest)

    def assign(self) -> None:
        queued = self.books.ledger.counters.states[State.QUEUED]
        serving = self.pool.serving
        steps = {i.key: i.verified["model0"].step for i in serving}
        most = self.books.capacity(self.pool.max_concurrency)
        allowed = {
            i.key: self.books.capacity(self.pool.max_concurrency, {"model0": steps[i.key]}) + queued for i in serving
        }
        room = {i.key: min(i.available, allowed[i.key]) for i in serving}
        shares = fit(share_out(room, dict.fromkeys(room, 3), max(0, most + queued)), allowed)
        for _ in range(sum(shares.values()) - queued):
            self.books.record(Issue(0))
        for key, share in shares.items():
            ids = self.books.ledger.queued(share)
            if ids:
                self.books.record(Lease(tuple(ids), key, self.now + self.chance.randint(3, 30)))
                for group_id in ids:
                    self.born[group_id] = steps[key]
                    self.sent.append((key, group_id))

    def result(self) -> None:
        if not self.sent:
            return
        index = self.chance.randrange(len(self.sent))
        key, group_id = self.sent[index]
        if self.chance.random() < 0.8:
            self.sent.pop(index)  # else it comes again
        fails = self.chance.random() < 0.2
        moves = self.books.record(Finish(group_id, key, () if fails else (KEY,), DropReason.FAILED))
        if moves and not fails:
            drop = DropReason.ZERO_ADVANTAGE if self.chance.random() < 0.3 else None
            self.books.record(Curate(group_id, drop))
            if drop is None:
                self.ready.append(group_id)

    def train(self) -> None:
        old = [group_id for group_id in self.ready if self.born[group_id] < self.step - self.eta]
        if old:
            self.books.record(Drop(tuple(old), DropReason.STALE))
            self.ready = [group_id for group_id in self.ready if group_id not in old]
        if not self.served and len(self.ready) >= self.batch:
            self.served, self.ready = self.ready[: self.batch], self.ready[self.batch :]
            self.books.record(Serve(tuple(self.served), self.step))
            assert all(self.step - self.born[group_id] <= self.eta for group_id in self.served)
        elif self.served:
            self.books.record(Acknowledge("model0"))
            self.trained += self.served
            self.served = []
            self.step += 1
            self.publish(self.step)
            self.admission.advance(self.step)

    def death(self) -> None:
        live = self.pool.live
        if live:
            key = self.chance.choice(live).key
            while not self.pool.failed(key, "killed"):
                pass
            self.books.record(LoseLeases(key))

    def check(self) -> None:
        ledger = self.books.ledger
        ledger.validate()
        self.pool.validate()
        self.admission.validate(ledger.counters.states, ledger.counters.trained)
        for instance in self.pool.live:
            assert instance.inflight == ledger.leased_to(instance.key) <= instance.max_concurrency
        assert self.admission.accepted + self.admission.running <= (self.eta + self.step + 1) * self.batch
        assert len(self.trained) == len(set(self.trained)) == ledger.counters.trained


@given(seed=st.integers(0, 2**32), batch=st.integers(1, 4), eta=st.integers(0, 3))
def test_any_interleaving_keeps_the_books(seed: int, batch: int, eta: int) -> None:
    chance = random.Random(seed)
    world = World(chance, batch, eta)
    moves = [world.register, world.pull, world.assign, world.result, world.result, world.train, world.death]
    for _ in range(120):
        world.now += 1
        if chance.random() < 0.1:
            world.books.record(Expire(world.now))
        chance.choices(moves, [1, 3, 4, 6, 6, 3, 0.4])[0]()
        world.check()


@given(seed=st.integers(0, 2**32))
def test_after_the_chaos_a_healthy_pool_trains_on(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance, 2, 1)
    for _ in range(60):
        world.now += 1
        chance.choice([world.register, world.pull, world.assign, world.result, world.train, world.death])()
    world.register()
    before = world.step
    for _ in range(300):
        world.now += 1
        world.books.record(Expire(world.now))
        world.pool.pardon(world.now)
        for move in (world.pull, world.assign, world.result, world.train):
            move()
        world.check()
        if world.step >= before + 3:
            return
    raise AssertionError(f"no progress: {world.books.ledger.counters}")
