"""A language model reads the findings and the skill and suggests changes; what it may not know, it may not claim.

Evidence comes from the findings that a suggestion refers to, never from the model's own words.
"""

from __future__ import annotations

import re

import msgspec

from astraflow.errors import ConfigError, DataError
from astraflow.evolution.traces.findings import Finding, Suggestion
from astraflow.evolution.traces.proposers.base import Ask, Context, suggest
from astraflow.evolution.traces.shelf import SkillView

TRIES = 2
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class Idea(msgspec.Struct, frozen=True, kw_only=True):
    """A change as the model writes it."""

    target_section: str
    action: str
    description: str
    content: str
    finding_ids: list[str]


class ReflectProposer:
    """Asks once for ideas as JSON, once more where the reply is not that; then DataError."""

    def propose(self, context: Context) -> list[Suggestion]:
        if context.ask is None:
            raise ConfigError("the proposer 'reflect' needs a language model: give --endpoint and --model")
        findings = context.own_findings()
        if not findings:
            return []
        known = {finding.finding_id: finding for finding in findings}
        suggestions = []
        for idea in ideas(context.ask, prompt(context.view, findings)):
            cited = [known[name] for name in idea.finding_ids if name in known]
            if cited:
                given = (idea.target_section, idea.action, idea.description, idea.content)
                suggestions.append(suggest(context.view, cited, *given, "reflect"))
        return suggestions


def ideas(ask: Ask, question: str) -> list[Idea]:
    """The model's ideas; DataError after TRIES replies that are no JSON list of them."""
    problem = ""
    for _ in range(TRIES):
        reply = ask(question + (f"\n\nYour last reply could not be read: {problem}" if problem else ""))
        try:
            return msgspec.json.decode(json_text(reply), type=list[Idea])
        except msgspec.DecodeError as error:
            problem = str(error)
    raise DataError(f"the model's reply is no JSON list of changes: {problem}")


def json_text(reply: str) -> str:
    """The JSON in a reply: the last fenced block, else all of it."""
    blocks = _FENCE.findall(reply)
    return blocks[-1] if blocks else reply.strip()


def prompt(view: SkillView, findings: list[Finding]) -> str:
    """The question: the skill's sections, the findings, the form of the answer."""
    sections = "\n\n".join(f"[section {name}]\n{text}" for name, text in view.sections.items())
    problems = "\n".join(
        f"- {finding.finding_id} ({finding.confidence}, {finding.occurrences} times): {finding.title}. "
        f"Example: {finding.example or 'none'}"
        for finding in findings
    )
    return (
        f"An agent works by the skill '{view.name}'. Its sections:\n\n{sections}\n\n"
        f"What went wrong in recorded sessions:\n{problems}\n\n"
        "Suggest at most three changes to the skill that would prevent this. Each changes one section by replace, "
        "append, prepend or insert_after. Write general instructions, nothing about single cases. Reply with a JSON "
        'list of {"target_section", "action", "description", "content", "finding_ids"} and nothing else.'
    )
