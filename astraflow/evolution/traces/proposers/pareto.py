"""Search over the texts of a skill's sections, keeping every candidate that is best somewhere.

After GEPA (Agrawal et al. 2025, "Reflective prompt evolution can outperform reinforcement learning"): parents are drawn
from the Pareto front over training cases, in proportion to the cases on which they are best; one section is rewritten
by reflection on what went wrong; a child that is no better on a small batch is dropped at once; two candidates of the
front that changed different sections may be merged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astraflow.errors import ConfigError
from astraflow.evolution.traces.findings import Suggestion
from astraflow.evolution.traces.proposers.base import Context, TryOut, home_section, suggest
from astraflow.evolution.traces.proposers.rule import advice

STEPS = 8
BATCH = 4
MERGE_EVERY = 3


@dataclass(frozen=True)
class Candidate:
    """A skill as changed sections, with its score on each training case."""

    changed: Mapping[str, str]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)


class ParetoProposer:
    """Suggests the sections of the best candidate, if it beats the skill as it is."""

    def propose(self, context: Context) -> list[Suggestion]:
        if context.try_out is None or not context.cases:
            raise ConfigError(
                "the proposer 'pareto' needs training cases to try candidates on: use `traj loop` with a task file"
            )
        findings = context.own_findings()
        if not findings:
            return []
        best = search(context, context.try_out)
        return [
            suggest(context.view, findings, section, "replace", f"{section} rewritten by search", text, "pareto")
            for section, text in best.changed.items()
        ]


def search(context: Context, try_out: TryOut, steps: int = STEPS) -> Candidate:
    """Return the candidate with the best mean score on all training cases; the unchanged skill where none beats it."""
    source = random.Random(context.seed)
    every = range(context.cases)
    pool = [Candidate({}, tuple(try_out({}, every)))]
    for step in range(1, steps + 1):
        front = pareto_front(pool)
        parent = source.choices(front, weights=[wins(candidate, pool) for candidate in front])[0]
        merged = _merged(front, pool, source) if step % MERGE_EVERY == 0 else None
        changed = merged or _rewritten(context, parent, step, source)
        if changed is None or any(changed == candidate.changed for candidate in pool):
            continue
        batch = source.sample(every, min(BATCH, context.cases))
        if not merged and sum(try_out(changed, batch)) <= sum(parent.scores[case] for case in batch):
            continue
        pool.append(Candidate(changed, tuple(try_out(changed, every))))
    return max(pool, key=lambda candidate: candidate.mean)  # the earliest of equals: the least changed


def pareto_front(pool: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that no other is at least as good as everywhere and better than somewhere."""
    return [a for a in pool if not any(_dominates(b, a) for b in pool)]


def wins(candidate: Candidate, pool: Sequence[Candidate]) -> int:
    """On how many cases a candidate is among the best."""
    best = [max(scores) for scores in zip(*(other.scores for other in pool), strict=True)]
    return sum(score >= top for score, top in zip(candidate.scores, best, strict=True))


def _dominates(a: Candidate, b: Candidate) -> bool:
    pairs = list(zip(a.scores, b.scores, strict=True))
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


def _merged(front: Sequence[Candidate], pool: Sequence[Candidate], source: random.Random) -> dict[str, str] | None:
    """Two candidates of the front that changed different sections, as one."""
    pairs = [
        (a, b)
        for a in front
        for b in front
        if a.changed and b.changed and not a.changed.keys() & b.changed.keys() and wins(a, pool) >= wins(b, pool)
    ]
    if not pairs:
        return None
    a, b = source.choice(pairs)
    return {**a.changed, **b.changed}


def _rewritten(context: Context, parent: Candidate, step: int, source: random.Random) -> dict[str, str] | None:
    """The parent with one section rewritten: by the model where there is one, else by a rule's advice."""
    texts = {**context.view.sections, **parent.changed}
    if context.ask is None:
        section = home_section(context.view)
        lines = [line for finding in context.own_findings() if (line := advice(finding))]
        lines = [line for line in lines if section and line not in texts[section]]
        if section is None or not lines:
            return None
        return {**parent.changed, section: f"{texts[section]}\n\n{source.choice(lines)}".strip()}
    names = sorted(context.view.sections)
    section = names[step % len(names)]
    failed = [case for case, score in enumerate(parent.scores) if score < 1]
    problems = "\n".join(f"- {finding.title}" for finding in context.own_findings())
    reply = context.ask(
        f"This is the section '{section}' of the instructions that an agent works by:\n\n{texts[section]}\n\n"
        f"The agent fails {len(failed)} of {len(parent.scores)} tasks. What goes wrong:\n{problems}\n\n"
        "Write the whole section anew so that the agent does better. Reply with its text and nothing else."
    ).strip()
    return {**parent.changed, section: reply} if reply else None
