"""Suggestions become patches, and patches earn their place by measurement.

Invariant: a patch that these functions wrote is active only after it was accepted, and accepted only after paired
scores on held-out cases showed at least the minimum effect on the skill as it still is, or by force with a reason.

    proposed → evaluated → accepted | rejected → archived
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from astraflow.errors import ConfigError
from astraflow.evolution.skillbank import Action, Patch, PatchStatus, SkillBankError
from astraflow.evolution.traces.files import write_whole
from astraflow.evolution.traces.findings import Suggestion, confidence_of
from astraflow.evolution.traces.paired import Comparison, compare
from astraflow.evolution.traces.payload import now
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.store import TraceStore

Score = Callable[[str], dict[str, float]]
"""Scores a skill's text on held-out cases: case → score in [0, 1]. The same cases and seeds on every call."""

_MOVES = {
    PatchStatus.PROPOSED: {PatchStatus.EVALUATED, PatchStatus.ACCEPTED, PatchStatus.REJECTED},
    PatchStatus.EVALUATED: {PatchStatus.EVALUATED, PatchStatus.ACCEPTED, PatchStatus.REJECTED},
    PatchStatus.ACCEPTED: {PatchStatus.ARCHIVED},
    PatchStatus.REJECTED: {PatchStatus.ARCHIVED},
}


class RefusedError(ConfigError):
    """A suggestion or a step of a patch's life that the rules do not allow; nothing was changed."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a patch's status."""

    status: str
    time: str
    reason: str
    round: int | None = None
    """The round whose loop made it."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Paired scores, and of what exactly."""

    comparison: Comparison
    skill_digest: str
    """The compiled skill before."""
    patched_digest: str
    """The compiled skill with the patch."""
    time: str


class PatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a patch came to its status: traj_opt/output/patches/<skill>/<id>.json."""

    skill: str
    patch_id: str
    history: list[Step] = []
    measurement: Measurement | None = None


@dataclass(frozen=True)
class Threshold:
    """What an acceptance needs."""

    min_effect: float = 0.05
    """Mean gain on held-out cases, in score."""
    max_p_value: float = 0.05


class Optimizer:
    """Moves patches through their life."""

    def __init__(self, store: TraceStore, shelf: SkillShelf) -> None:
        self.store = store
        self.shelf = shelf

    def record(self, skill: str, patch_id: str) -> PatchRecord:
        try:
            return msgspec.json.decode(self._record_path(skill, patch_id).read_bytes(), type=PatchRecord)
        except FileNotFoundError:
            return PatchRecord(skill=skill, patch_id=patch_id)

    def propose(self, suggestion: Suggestion) -> Patch:
        """Write a suggestion as a patch file with status proposed; the same suggestion again is the same patch.

        RefusedError: a traj-* skill, an unknown skill, section or action, no evidence, no text.
        """
        self._check(suggestion)
        patch = _patch(suggestion, self._rounds_of(suggestion.session_ids))
        for earlier in self.shelf.patches(suggestion.skill):
            if earlier.id == patch.id:
                return earlier
        self.shelf.view(suggestion.skill, patch)  # a patch that cannot be compiled is refused here
        self.shelf.add(suggestion.skill, patch)
        self._note(suggestion.skill, patch.id, PatchStatus.PROPOSED, suggestion.proposer)
        return self.shelf.patch(suggestion.skill, patch.id)

    def evaluate(self, skill: str, patch_id: str, score: Score) -> Measurement:
        """Score the skill without and with the patch on the same held-out cases."""
        patch = self._may_become(skill, patch_id, PatchStatus.EVALUATED)
        before, after = self.shelf.view(skill), self.shelf.view(skill, patch)
        comparison = compare(score(before.text), score(after.text))
        measurement = Measurement(
            comparison=comparison, skill_digest=before.digest, patched_digest=after.digest, time=now()
        )
        self.shelf.set_fields(skill, patch_id, status=str(PatchStatus.EVALUATED), effect=round(comparison.effect, 6))
        reason = f"effect {comparison.effect:+.3f}, p {comparison.p_value:.3g}"
        self._note(skill, patch_id, PatchStatus.EVALUATED, reason, measurement)
        return measurement

    def decide(self, skill: str, patch_id: str, threshold: Threshold, round_number: int | None = None) -> PatchStatus:
        """Accept an evaluated patch that has the effect, reject one that has not.

        RefusedError: there is no measurement of the skill and the patch as they are.
        """
        self._may_become(skill, patch_id, PatchStatus.REJECTED)
        if gap := self._unmeasured(skill, patch_id):
            raise RefusedError(f"patch '{patch_id}' of '{skill}': {gap}; evaluate it")
        if objection := self.objection(skill, patch_id, threshold):
            self.reject(skill, patch_id, objection)
            return PatchStatus.REJECTED
        self.accept(skill, patch_id, threshold, round_number=round_number)
        return PatchStatus.ACCEPTED

    def objection(self, skill: str, patch_id: str, threshold: Threshold) -> str | None:
        """Why a patch may not be accepted, or None."""
        measured = self.record(skill, patch_id).measurement
        gap = self._unmeasured(skill, patch_id)
        if measured is None or gap:
            return gap
        effect, p_value = measured.comparison.effect, measured.comparison.p_value
        if effect < threshold.min_effect:
            return f"effect {effect:+.3f} is below {threshold.min_effect}"
        if p_value > threshold.max_p_value:
            return f"p {p_value:.3g} is above {threshold.max_p_value}: the effect may be chance"
        return None

    def accept(
        self,
        skill: str,
        patch_id: str,
        threshold: Threshold,
        force_reason: str | None = None,
        round_number: int | None = None,
    ) -> Path:
        """Activate a patch and compile its skill; an interrupted acceptance is finished by the next call.

        RefusedError: no sufficient effect and no reason to force it.
        """
        patch = self.shelf.patch(skill, patch_id)
        if patch.status is PatchStatus.ACCEPTED:
            return self._finish(skill, patch_id)
        self._may_become(skill, patch_id, PatchStatus.ACCEPTED)
        objection = self.objection(skill, patch_id, threshold)
        if objection and not (force_reason and force_reason.strip()):
            raise RefusedError(f"patch '{patch_id}' of '{skill}': {objection}; --force needs a --reason")
        reason = f"forced: {force_reason} ({objection})" if objection else "it has the effect"
        self.shelf.activate(skill, patch_id)
        try:
            written = self.shelf.write(skill)
        except SkillBankError:
            self.shelf.deactivate(skill, patch_id, patch.status)
            raise
        self._note(skill, patch_id, PatchStatus.ACCEPTED, reason, round_number=round_number)
        return written

    def accepted_in(self, skill: str, round_number: int) -> list[str]:
        """The patches that a round's loop accepted."""
        records = [self.record(skill, patch.id) for patch in self.shelf.patches(skill)]
        steps = [(record.patch_id, step) for record in records for step in record.history]
        return [name for name, step in steps if step.status == PatchStatus.ACCEPTED and step.round == round_number]

    def finish_interrupted(self, skill: str, round_number: int | None = None) -> list[str]:
        """Carry out acceptances that a killed process began; returns the patches."""
        begun = []
        for patch in self.shelf.patches(skill):
            history = self.record(skill, patch.id).history
            if patch.status is PatchStatus.ACCEPTED and history and history[-1].status != PatchStatus.ACCEPTED:
                self._finish(skill, patch.id, round_number)
                begun.append(patch.id)
        return begun

    def reject(self, skill: str, patch_id: str, reason: str) -> None:
        """Reject a patch; the compiled skill stays as it is."""
        self._may_become(skill, patch_id, PatchStatus.REJECTED)
        self.shelf.set_fields(skill, patch_id, status=str(PatchStatus.REJECTED))
        self._note(skill, patch_id, PatchStatus.REJECTED, reason)

    def roll_back(self, skill: str, patch_id: str, reason: str) -> Path:
        """Take an accepted patch out of its skill again, compile, and archive the patch."""
        if self.shelf.patch(skill, patch_id).status is not PatchStatus.ACCEPTED:
            raise RefusedError(f"patch '{patch_id}' of '{skill}' is not accepted: there is nothing to roll back")
        self.shelf.deactivate(skill, patch_id, PatchStatus.ARCHIVED)
        try:
            written = self.shelf.write(skill)
        except SkillBankError:  # another patch depends on it, or the file was edited by hand
            self.shelf.activate(skill, patch_id)
            raise
        self._note(skill, patch_id, PatchStatus.ARCHIVED, f"rolled back: {reason}")
        return written

    def archive(self, skill: str, patch_id: str, reason: str) -> None:
        """Put a rejected patch away."""
        if self.shelf.is_active(skill, patch_id):
            raise RefusedError(f"patch '{patch_id}' of '{skill}' is active: roll it back")
        self._may_become(skill, patch_id, PatchStatus.ARCHIVED)
        self.shelf.set_fields(skill, patch_id, status=str(PatchStatus.ARCHIVED))
        self._note(skill, patch_id, PatchStatus.ARCHIVED, reason)

    def roll_back_regression(self, skill: str, score: Score, threshold: Threshold) -> str | None:
        """Measure the skill as it is; where it does worse than its latest patch promised, roll that patch back.

        Returns the id of the patch rolled back. The scores it promised are compared case by case.
        """
        latest = self._latest_accepted(skill)
        promised = latest.measurement if latest else None
        if latest is None or promised is None:
            return None
        current = score(self.shelf.view(skill).text)
        if current.keys() != promised.comparison.after.keys():
            return None  # other cases: nothing to compare with
        drop = compare(current, promised.comparison.after).effect
        if drop < threshold.min_effect:
            return None
        self.roll_back(skill, latest.patch_id, f"scores fell by {drop:.3f} after its acceptance")
        return latest.patch_id

    def _unmeasured(self, skill: str, patch_id: str) -> str | None:
        """Why the patch's measurement does not count, or None."""
        measured = self.record(skill, patch_id).measurement
        if measured is None:
            return "it was never evaluated on held-out cases"
        if measured.skill_digest != self.shelf.view(skill).digest:
            return "the skill has changed since it was evaluated"
        if measured.patched_digest != self.shelf.view(skill, self.shelf.patch(skill, patch_id)).digest:
            return "the patch has changed since it was evaluated"
        return None

    def _finish(self, skill: str, patch_id: str, round_number: int | None = None) -> Path:
        self.shelf.activate(skill, patch_id)
        written = self.shelf.write(skill)
        history = self.record(skill, patch_id).history
        if not history or history[-1].status != PatchStatus.ACCEPTED:
            reason = "an interrupted acceptance was finished"
            self._note(skill, patch_id, PatchStatus.ACCEPTED, reason, round_number=round_number)
        return written

    def _latest_accepted(self, skill: str) -> PatchRecord | None:
        records = [self.record(skill, p.id) for p in self.shelf.patches(skill) if self.shelf.is_active(skill, p.id)]
        accepted = [r for r in records if r.history and r.history[-1].status == PatchStatus.ACCEPTED]
        return max(accepted, key=lambda r: r.history[-1].time, default=None)

    def _check(self, suggestion: Suggestion) -> None:
        skill = suggestion.skill
        if skill.startswith("traj-"):
            raise RefusedError(f"'{skill}' is a traj skill: the optimizer does not change what it works by")
        if skill not in self.shelf.names():
            raise RefusedError(f"unknown skill '{skill}'; known: {', '.join(self.shelf.names())}")
        sections = self.shelf.view(skill).sections
        if suggestion.target_section not in sections:
            known = ", ".join(sections) or "none"
            raise RefusedError(f"'{skill}' has no section '{suggestion.target_section}'; it has: {known}")
        if suggestion.action not in set(Action):
            raise RefusedError(f"unknown action '{suggestion.action}'; known: {', '.join(Action)}")
        if not suggestion.content.strip():
            raise RefusedError("the suggestion has no text")
        if not suggestion.session_ids:
            raise RefusedError("the suggestion has no evidence: it names no session")
        known_sessions = set(self.store.sessions())
        if strangers := [session for session in suggestion.session_ids if session not in known_sessions]:
            raise RefusedError(f"the suggestion's evidence does not exist: no session {', '.join(strangers)}")

    def _rounds_of(self, sessions: list[str]) -> list[int]:
        events = (event for session in sessions for event in self.store.events(session))
        return sorted({event.round for event in events if event.round is not None})

    def _may_become(self, skill: str, patch_id: str, status: PatchStatus) -> Patch:
        patch = self.shelf.patch(skill, patch_id)
        if status not in _MOVES.get(patch.status, set()):
            raise RefusedError(f"patch '{patch_id}' of '{skill}' is {patch.status}: it cannot become {status}")
        return patch

    def _note(
        self,
        skill: str,
        patch_id: str,
        status: PatchStatus,
        reason: str,
        measurement: Measurement | None = None,
        round_number: int | None = None,
    ) -> None:
        record = self.record(skill, patch_id)
        step = Step(status=status, time=now(), reason=reason, round=round_number)
        changed = msgspec.structs.replace(
            record, history=[*record.history, step], measurement=measurement or record.measurement
        )
        data = msgspec.json.format(msgspec.json.encode(changed)) + b"\n"
        write_whole(self._record_path(skill, patch_id), data)

    def _record_path(self, skill: str, patch_id: str) -> Path:
        return self.store.root / "patches" / skill / f"{patch_id}.json"


def _patch(suggestion: Suggestion, rounds: list[int]) -> Patch:
    """The patch of a suggestion; how well it is supported is derived from its sessions, not taken on trust."""
    identity = "\0".join((suggestion.target_section, suggestion.action, suggestion.content.strip()))
    words = re.sub(r"[^a-z0-9]+", "-", suggestion.description.lower()).strip("-")[:40].rstrip("-")
    return Patch(
        id=f"{words or 'patch'}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}",
        target_section=suggestion.target_section,
        action=Action(suggestion.action),
        body=suggestion.content.strip(),
        description=suggestion.description,
        status=PatchStatus.PROPOSED,
        extra={
            "confidence": str(confidence_of(rounds, suggestion.session_ids)),
            "evidence_rounds": rounds,
            "source_sessions": list(suggestion.session_ids),
            "proposer": suggestion.proposer,
        },
    )
