"""A report as people read it."""

from __future__ import annotations

from astraflow.evolution.traces.findings import Finding, Report, Suggestion

_SHOWN = 12


def render(report: Report) -> str:
    """Markdown: the figures, each problem with its sessions and confidence, each suggestion."""
    share = f"{report.failed_calls} of {report.tool_calls}"
    lines = [
        f"# {report.name}",
        "",
        f"Layer {report.layer}" + (f", up to round {report.round}" if report.round is not None else "") + ".",
        "",
        "| sessions | traces | failed calls | outcomes |",
        "| --- | --- | --- | --- |",
        f"| {report.sessions} | {report.traces} | {share} | {_counts(report.outcomes)} |",
        "",
        "## Problems",
        "",
    ]
    for finding in report.findings:
        lines += _finding(finding)
    if not report.findings:
        lines += ["None found.", ""]
    lines += ["## Suggestions", ""]
    for suggestion in report.suggestions:
        lines += _suggestion(suggestion)
    if not report.suggestions:
        lines += ["None.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _finding(finding: Finding) -> list[str]:
    where = f"skill `{finding.skill}`" if finding.skill else "free work"
    rounds = ", ".join(map(str, finding.rounds)) or "none recorded"
    lines = [
        f"### {finding.title}",
        "",
        f"- id: {finding.finding_id}, {finding.kind.value}, {where}",
        f"- confidence: {finding.confidence.value} ({finding.occurrences} times, rounds: {rounds})",
        f"- sessions: {_ids(finding.session_ids)}",
    ]
    if finding.example:
        lines.append(f"- example: {' '.join(finding.example.split())}")
    return [*lines, ""]


def _suggestion(suggestion: Suggestion) -> list[str]:
    return [
        f"### {suggestion.description}",
        "",
        f"- skill `{suggestion.skill}`, section `{suggestion.target_section}`, {suggestion.action}",
        f"- confidence: {suggestion.confidence.value}, by {suggestion.proposer}",
        f"- sessions: {_ids(suggestion.session_ids)}",
        "",
        *(f"> {line}".rstrip() for line in suggestion.content.splitlines()),
        "",
    ]


def _ids(sessions: list[str]) -> str:
    rest = f" and {len(sessions) - _SHOWN} more" if len(sessions) > _SHOWN else ""
    return ", ".join(f"`{session}`" for session in sessions[:_SHOWN]) + rest


def _counts(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items()) or "none"
