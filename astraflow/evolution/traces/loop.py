"""The closed loop: an agent works by the compiled skill, its traces teach a patch, the patch is measured and, where it
helps, part of the skill in the next round.

One process plays both roles in turn, or two processes play one each and meet in the rounds' status.json:

    trainer     work on the training cases, recorded ─► training_complete ─► wait for optimization_complete ─► next
    optimizer   wait for training_complete ─► segment ─► analyse ─► propose ─► evaluate on held-out cases ─► decide
                ─► optimization_complete ─► next

Every step of a round may be done again after a kill: sessions get new ids, traces and reports are replaced, the same
suggestion is the same patch, and a decision that was half carried out is finished.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import msgspec

from astraflow.errors import ConfigError, DataError, WireError
from astraflow.evolution.skillbank import Patch, PatchStatus, SkillBankError
from astraflow.evolution.traces.analyzer import analyse
from astraflow.evolution.traces.files import write_whole
from astraflow.evolution.traces.findings import Report
from astraflow.evolution.traces.optimizer import Optimizer, RefusedError, Score, Threshold
from astraflow.evolution.traces.payload import layer_of
from astraflow.evolution.traces.practice.agents import Agent
from astraflow.evolution.traces.practice.desk import Tasks
from astraflow.evolution.traces.practice.episodes import measure, run_recorded
from astraflow.evolution.traces.proposers import PROPOSERS, Context
from astraflow.evolution.traces.proposers.base import Ask
from astraflow.evolution.traces.proposers.playbook import load, playbook_path
from astraflow.evolution.traces.report import render
from astraflow.evolution.traces.rounds import Rounds, RoundStatus, WaitResult
from astraflow.evolution.traces.segmenters import segment_session


class OnFailure(StrEnum):
    """What a failed training leads to."""

    STOP = "stop"
    RETRY = "retry"


@dataclass(frozen=True)
class LoopSettings:
    """How a loop is played."""

    skill: str
    rounds: int
    first_round: int = 1
    seed: int = 0
    repeats: int = 3
    """Measurements of each held-out case."""
    patches_a_round: int = 1
    """Accepted at most; each is measured on top of those before it."""
    proposers: Sequence[str] = ("rule",)
    threshold: Threshold = field(default_factory=Threshold)
    on_failure: OnFailure = OnFailure.STOP
    retries: int = 2
    timeout: float = 3600.0
    stale_after: float = 60.0
    train_command: Sequence[str] = ()
    """Trains in place of the agent's work on the training cases; its exit code is the training's."""


class PatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one proposed patch."""

    patch_id: str
    status: str
    effect: float | None
    p_value: float | None


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an optimizer did in a round: rounds/round_<n>/result.json."""

    round: int
    sessions: int
    findings: int
    patches: list[PatchResult]
    rolled_back: str | None
    held_out_score: float
    skill_digest: str


class Loop:
    """Plays rounds of one skill. `score` measures it instead of the agent on the held-out cases of `tasks`."""

    def __init__(
        self,
        optimizer: Optimizer,
        tasks: Tasks,
        agent: Agent,
        settings: LoopSettings,
        *,
        ask: Ask | None = None,
        score: Score | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        tasks.check()
        self._optimizer = optimizer
        self._store, self._shelf = optimizer.store, optimizer.shelf
        self._tasks, self._agent, self._settings = tasks, agent, settings
        self._ask, self._say = ask, say
        self._score = score or self._held_out_scores
        self._own_score = score is not None
        self.rounds = Rounds(self._store.rounds)

    @property
    def numbers(self) -> range:
        return range(self._settings.first_round, self._settings.first_round + self._settings.rounds)

    def both(self) -> WaitResult:
        """Play trainer and optimizer in turn."""
        for number in self.numbers:
            if not self._train_round(number):
                return WaitResult.FAILED
            self._optimise_round(number)
        return WaitResult.COMPLETE

    def trainer(self) -> WaitResult:
        """Play the trainer; a round that is done already is passed over."""
        for number in self.numbers:
            if not self._train_round(number):
                return WaitResult.FAILED
            waited = self._wait(number, RoundStatus.OPTIMIZATION_COMPLETE)
            if waited is not WaitResult.COMPLETE:
                return waited
        return WaitResult.COMPLETE

    def optimizer(self) -> WaitResult:
        """Play the optimizer; a round that is done already is passed over."""
        for number in self.numbers:
            wanted = (RoundStatus.TRAINING_COMPLETE, RoundStatus.OPTIMIZATION_COMPLETE)
            waited = self._wait(number, *wanted)
            if waited is not WaitResult.COMPLETE:
                return waited
            self._optimise_round(number)
        return WaitResult.COMPLETE

    def optimise(self, number: int) -> RoundResult:
        """Do the optimizer's work of a round; repeating it leads to the same patches."""
        skill = self._settings.skill
        for patch_id in self._optimizer.finish_interrupted(skill, number):
            self._say(f"round {number}: the acceptance of {patch_id} was interrupted and is finished")
        rolled_back = self._optimizer.roll_back_regression(skill, self._score, self._settings.threshold)
        report = self._report(number)
        results: list[PatchResult] = []
        proposed = self._propose(report)
        rolled_back = rolled_back or self._retire()
        if rolled_back:
            self._say(f"round {number}: {rolled_back} rolled back, it does worse than it did")
        for patch in proposed:
            if len(self._optimizer.accepted_in(skill, number)) >= self._settings.patches_a_round:
                break
            results.append(self._judge(patch, number))
            self._say(_line(number, results[-1]))
        scores = self._score(self._shelf.view(skill).text)
        result = RoundResult(
            round=number,
            sessions=report.sessions,
            findings=len(report.findings),
            patches=results,
            rolled_back=rolled_back,
            held_out_score=sum(scores.values()) / len(scores),
            skill_digest=self._shelf.view(skill).digest,
        )
        self._say(f"round {number}: held-out score {result.held_out_score:.3f}")
        return result

    def _train_round(self, number: int) -> bool:
        """Train a round unless it has been; False where it failed for good."""
        status = self.rounds.status(number)
        if status and status.status is not RoundStatus.TRAINING_FAILED:
            return True
        if status and not status.will_retry and self._settings.on_failure is OnFailure.STOP:
            self._say(f"round {number}: training has failed ({status.detail}); --on-failure retry would try it again")
            return False
        attempt = status.attempt + 1 if status else 1
        while True:
            with self.rounds.beating(number, "trainer"):
                problem = self._train(number)
                retry = self._settings.on_failure is OnFailure.RETRY and attempt <= self._settings.retries
                outcome = RoundStatus.TRAINING_FAILED if problem else RoundStatus.TRAINING_COMPLETE
                self.rounds.set_status(
                    number, outcome, attempt=attempt, will_retry=bool(problem) and retry, detail=problem or ""
                )
            if problem is None:
                return True
            self._say(f"round {number}: training failed ({problem}), {'once more' if retry else 'stop'}")
            if not retry:
                return False
            attempt += 1

    def _train(self, number: int) -> str | None:
        """Do a round's training; returns what went wrong, or None."""
        settings = self._settings
        if settings.train_command:
            command = [part.replace("{round}", str(number)) for part in settings.train_command]
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
            except OSError as error:
                return f"{command[0]}: {error.strerror}"
            return None if done.returncode == 0 else f"exit code {done.returncode}"
        try:
            text = self._shelf.write(settings.skill).read_text("utf-8")
            scores = run_recorded(
                self._agent, self._store, settings.skill, text, self._tasks.train, number, settings.seed + number
            )
        except (ConfigError, DataError, WireError) as error:
            return str(error)
        self._say(f"round {number}: training score {sum(scores.values()) / len(scores):.3f} on {len(scores)} cases")
        return None

    def _optimise_round(self, number: int) -> None:
        status = self.rounds.status(number)
        if status and status.status is RoundStatus.OPTIMIZATION_COMPLETE:
            self._say(f"round {number}: complete already")
            return
        with self.rounds.beating(number, "optimizer"):
            result = self.optimise(number)
            data = msgspec.json.format(msgspec.json.encode(result)) + b"\n"
            write_whole(self.rounds.path(number) / "result.json", data)
            detail = f"held-out score {result.held_out_score:.3f}"
            self.rounds.set_status(number, RoundStatus.OPTIMIZATION_COMPLETE, detail=detail)

    def _report(self, number: int) -> Report:
        """Segment every session anew and analyse the skill's traces so far."""
        for session in self._store.sessions():
            segment_session(self._store, session)
        self._store.rebuild_index()
        skill = self._settings.skill
        report = analyse(self._store, layer_of(skill), f"{skill}_round_{number}", round_number=number, skill=skill)
        return self._written(report)

    def _written(self, report: Report) -> Report:
        self._store.write_report(report.layer, report.name, render(report), report)
        return report

    def _propose(self, report: Report) -> list[Patch]:
        """Patches to be judged: those that the proposers suggest and that were not judged before."""
        skill = self._settings.skill
        context = Context(
            view=self._shelf.view(skill),
            findings=report.findings,
            traces=[trace for trace in self._store.traces(report.layer) if trace.skill == skill],
            ask=self._ask,
            try_out=None if self._own_score else self._try_out,
            cases=len(self._tasks.train),
            seed=self._settings.seed,
            folder=self._store.root,
        )
        suggestions = [s for name in self._settings.proposers for s in PROPOSERS.resolve(name)().propose(context)]
        self._written(msgspec.structs.replace(report, suggestions=suggestions))
        patches: dict[str, Patch] = {}
        for suggestion in suggestions:
            try:
                patch = self._optimizer.propose(suggestion)
            except (RefusedError, ConfigError, DataError) as refusal:
                self._say(f"refused: {refusal}")
                continue
            if patch.status in (PatchStatus.PROPOSED, PatchStatus.EVALUATED):
                patches[patch.id] = patch
        return list(patches.values())

    def _retire(self) -> str | None:
        """Roll back an active patch whose playbook bullet harms more than it helps; returns its id."""
        skill = self._settings.skill
        retired = {one.text for one in load(playbook_path(self._store.root, skill), skill).retired()}
        for patch in self._shelf.patches(skill):
            if patch.body in retired and self._shelf.is_active(skill, patch.id):
                self._optimizer.roll_back(skill, patch.id, "its playbook bullet harmed more often than it helped")
                return patch.id
        return None

    def _judge(self, patch: Patch, number: int) -> PatchResult:
        skill = self._settings.skill
        try:
            measured = self._optimizer.evaluate(skill, patch.id, self._score).comparison
        except SkillBankError as error:  # it does not go together with a patch that was accepted before it
            self._optimizer.reject(skill, patch.id, str(error))
            return PatchResult(patch_id=patch.id, status=PatchStatus.REJECTED, effect=None, p_value=None)
        status = self._optimizer.decide(skill, patch.id, self._settings.threshold, number)
        return PatchResult(patch_id=patch.id, status=status, effect=measured.effect, p_value=measured.p_value)

    def _held_out_scores(self, text: str) -> dict[str, float]:
        return measure(self._agent, text, self._tasks.held_out, self._settings.seed, self._settings.repeats)

    def _try_out(self, sections: Mapping[str, str], cases: Sequence[int]) -> list[float]:
        """Scores on training cases of the skill with some sections replaced."""
        text = self._shelf.rewritten(self._settings.skill, sections)
        chosen = [self._tasks.train[case] for case in cases]
        return list(measure(self._agent, text, chosen, self._settings.seed, self._settings.repeats).values())

    def _wait(self, number: int, *wanted: RoundStatus) -> WaitResult:
        wait = partial(self.rounds.wait, timeout=self._settings.timeout, stale_after=self._settings.stale_after)
        return wait(number, wanted)


def _line(number: int, result: PatchResult) -> str:
    figures = f"effect {result.effect:+.3f}, p {result.p_value:.3g}" if result.effect is not None else "not measured"
    return f"round {number}: {result.patch_id} {result.status} ({figures})"
