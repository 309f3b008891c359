"""A playbook grows by small deltas and forgets what does harm.

After ACE (Zhang et al. 2025, "Agentic context engineering"): bullets are added one by one instead of rewriting the
whole, each counts how often it helped and how often it harmed, and one that harms more than it helps is retired. The
counters live in <folder>/playbooks/<skill>.json; each bullet is a patch of its own, so each is measured like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from astraflow.errors import ConfigError
from astraflow.evolution.traces.analyzer import recovery, signature
from astraflow.evolution.traces.files import write_whole
from astraflow.evolution.traces.findings import FindingKind, Suggestion
from astraflow.evolution.traces.proposers.base import Context, home_section, suggest
from astraflow.evolution.traces.proposers.rule import advice
from astraflow.evolution.traces.trace import AgentTrace


class Bullet(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice: when `tool_name` fails with `signature`, `step` helps."""

    bullet_id: str
    tool_name: str
    signature: str
    step: str
    text: str
    helpful: int = 0
    harmful: int = 0
    counted: list[str] = []
    """Traces already counted, so that counting twice changes nothing."""

    @property
    def retired(self) -> bool:
        return self.harmful > self.helpful


class Playbook(msgspec.Struct, frozen=True, kw_only=True):
    """The bullets of a skill."""

    skill: str
    bullets: list[Bullet] = []

    def counted(self, traces: Sequence[AgentTrace]) -> Playbook:
        """The playbook with the traces' verdicts counted.

        A bullet is used where its failure occurs and its step is taken next; it helped if the tool then worked, and
        harmed if the tool failed again.
        """
        return msgspec.structs.replace(self, bullets=[_counted(bullet, traces) for bullet in self.bullets])

    def retired(self) -> list[Bullet]:
        return [bullet for bullet in self.bullets if bullet.retired]


class PlaybookProposer:
    """Suggests one appended bullet for each failure with a remedy that the playbook does not have."""

    def propose(self, context: Context) -> list[Suggestion]:
        if context.folder is None:
            raise ConfigError("the proposer 'playbook' needs a folder for its counters")
        section = home_section(context.view)
        path = playbook_path(context.folder, context.view.name)
        playbook = load(path, context.view.name).counted(context.traces)
        found: list[Suggestion] = []
        for finding in context.own_findings():
            text = advice(finding)
            if section is None or text is None or finding.kind is not FindingKind.RECOVERED_FAILURE:
                continue
            bullet = Bullet(
                bullet_id="b-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8],
                tool_name=finding.tool_name or "",
                signature=finding.signature or "",
                step=finding.recovery or "",
                text=text,
            )
            known = next((one for one in playbook.bullets if one.bullet_id == bullet.bullet_id), None)
            if known is None:
                playbook = msgspec.structs.replace(playbook, bullets=[*playbook.bullets, bullet])
            if not (known and known.retired) and text not in context.view.text:
                description = f"playbook {bullet.bullet_id}: {finding.title}"
                found.append(suggest(context.view, [finding], section, "append", description, text, "playbook"))
        write_whole(path, msgspec.json.format(msgspec.json.encode(playbook)) + b"\n")
        return found


def playbook_path(folder: Path, skill: str) -> Path:
    return folder / "playbooks" / f"{skill}.json"


def load(path: Path, skill: str) -> Playbook:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Playbook)
    except FileNotFoundError:
        return Playbook(skill=skill)


def _counted(bullet: Bullet, traces: Sequence[AgentTrace]) -> Bullet:
    helpful, harmful, counted = bullet.helpful, bullet.harmful, list(bullet.counted)
    for trace in traces:
        if trace.trace_id in counted:
            continue
        verdicts = _verdicts(bullet, trace)
        helpful += sum(verdicts)
        harmful += len(verdicts) - sum(verdicts)
        if verdicts:
            counted.append(trace.trace_id)
    return msgspec.structs.replace(bullet, helpful=helpful, harmful=harmful, counted=counted)


def _verdicts(bullet: Bullet, trace: AgentTrace) -> list[bool]:
    calls, verdicts = trace.tool_calls, []
    for at, call in enumerate(calls[:-1]):
        if call.success or call.tool_name != bullet.tool_name or signature(call.error or "") != bullet.signature:
            continue
        if calls[at + 1].tool_name == bullet.step:
            step = recovery(calls[: at + 3], at)
            verdicts.append(step is not None and step.tool_name == bullet.step)
    return verdicts
