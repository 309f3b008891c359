"""Advice that traces contain by themselves: a failure whose remedy was seen to work, a loop to leave."""

from __future__ import annotations

from astraflow.evolution.traces.findings import Finding, FindingKind, Suggestion
from astraflow.evolution.traces.proposers.base import Context, home_section, suggest


class RuleProposer:
    """One suggestion for each finding that says what to do; what a skill already says is not said again."""

    def propose(self, context: Context) -> list[Suggestion]:
        section = home_section(context.view)
        if section is None:
            return []
        found = []
        for finding in context.own_findings():
            line = advice(finding)
            if line and line not in context.view.text:
                found.append(suggest(context.view, [finding], section, "append", finding.title, line, "rule"))
        return found


def advice(finding: Finding) -> str | None:
    """The line of a skill that a finding teaches, or None."""
    if finding.kind is FindingKind.RECOVERED_FAILURE:
        failure = f'When `{finding.tool_name}` fails with "{finding.signature}"'
        return f"- {failure}: call `{finding.recovery}`, then `{finding.tool_name}` again."
    if finding.kind is FindingKind.REPEATED_CALL:
        return f"- Call `{finding.tool_name}` with the same input at most twice; then change the input or the tool."
    return None
