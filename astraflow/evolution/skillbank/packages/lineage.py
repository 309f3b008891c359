"""A lineage archive: the rounds of optimisation that led to an experimental package, with their evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.packages.freezing import Draft, files_below
from astraflow.evolution.skillbank.packages.identity import PART, Kind, PackageId
from astraflow.evolution.skillbank.packages.registry import Registry, read_json
from astraflow.evolution.skillbank.packages.skill_sets import read_skill_set
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

TRACES = Path("traj_opt", "output")
"""Where rounds, events, traces and reports are, from the repository's root."""
LAYERS = ("rllm", "traj", "meta")
RANGE = re.compile(r"(\d+)-(\d+)")
MAX_ROUNDS = 1000
SESSION_KEYS = ("session_id", "session_ids", "sessions")
REPORT_KEYS = ("report", "report_path", "reports")


@dataclass(frozen=True)
class Round:
    """The evidence of one round."""

    number: int
    files: Mapping[str, Path]
    """Path in the archive → file."""
    sessions: tuple[str, ...]
    missing: tuple[str, ...]
    """What a complete round has and this one has not."""

    @property
    def name(self) -> str:
        """`round_<n>`."""
        return f"round_{self.number}"

    def as_json(self) -> dict[str, Any]:
        """How the archive's manifest lists it."""
        return {"round": self.number, "sessions": list(self.sessions), "missing": list(self.missing)}


def parse_rounds(listed: str, ranged: str) -> list[int]:
    """The rounds of `--round 1,2` and `--round-range 1-3` together, in order."""
    numbers: set[int] = set()
    for item in filter(None, (part.strip() for part in listed.split(","))):
        if not item.isdecimal():
            raise _refused(f"--round takes numbers such as 1,2, not '{item}'")
        numbers.add(int(item))
    if ranged:
        match = RANGE.fullmatch(ranged.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise _refused(f"--round-range takes FIRST-LAST such as 1-3, not '{ranged}'")
        if int(match[2]) - int(match[1]) >= MAX_ROUNDS:
            raise _refused(f"--round-range '{ranged}' has more than {MAX_ROUNDS} rounds")
        numbers.update(range(int(match[1]), int(match[2]) + 1))
    if not numbers:
        raise _refused("a lineage archive needs rounds: --round 1,2 or --round-range 1-3")
    return sorted(numbers)


def draft_lineage(
    bank: Bank, registry: Registry, name: str, domain: str, rounds: list[int], source: PackageId | None = None
) -> Draft:
    """Archive rounds with the package that they led to (without a name, the domain's experimental one).

    Evidence that is missing is listed, in the manifest and as warnings; it does not stop the archive.
    """
    package_id = PackageId(Kind.LINEAGE, domain, name)
    origin = source or registry.current.get((Kind.EXPERIMENTAL, domain))
    if origin is None:
        message = f"domain '{domain}' has no experimental package; name the source with --from-package"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id),)))
    skills = read_skill_set(bank, registry, origin)
    traces = bank.output_root / TRACES
    collected = [collect_round(traces, number) for number in rounds]
    files = dict(skills.files)
    for one in collected:
        files |= one.files
    details = {
        "domain": domain,
        "source": str(origin),
        "rounds": [one.as_json() for one in collected],
        "missing_evidence": [f"{one.name}: {what}" for one in collected for what in one.missing],
        "skills": sorted(skill.name for skill in skills.skills),
    }
    warnings = tuple(
        Problem(Code.MISSING_EVIDENCE, f"{one.name} has no {what}", (str(package_id), one.name))
        for one in collected
        for what in one.missing
    )
    return Draft(package_id, "archived", files, details, warnings)


def collect_round(traces: Path, number: int) -> Round:
    """Everything that one round left under the traces' folder."""
    name = f"round_{number}"
    folder = traces / "rounds" / name
    files = files_below(folder, f"rounds/{name}/")
    status = read_json(folder / "status.json") if (folder / "status.json").is_file() else {}
    missing = [] if status else ["status.json"]
    named = {text for text in _texts_under(status, SESSION_KEYS) if PART.fullmatch(text)}
    sessions = sorted(named | set(_sessions_recorded_in(traces, number)))
    if not sessions:
        missing.append("session")
    for session in sessions:
        for what, kind in (("events", "raw"), ("trajectories", "trajectories")):
            found = {
                place: file
                for layer in LAYERS
                for place, file in files_below(
                    traces / layer / kind / session, f"{what}/{name}/{layer}/{session}/"
                ).items()
            }
            files |= found
            if not found:
                missing.append(f"{what} of session {session}")
    reports = _reports(traces, number, _texts_under(status, REPORT_KEYS))
    files |= {f"reports/{name}/{place}": file for place, file in reports.items()}
    if not reports:
        missing.append("report")
    return Round(number, files, tuple(sessions), tuple(missing))


def _sessions_recorded_in(traces: Path, number: int) -> Iterator[str]:
    """Sessions with an event of that round. A line that is torn or is no JSON has no say."""
    for layer in LAYERS:
        for file in sorted((traces / layer / "raw").glob("*/events.jsonl")):
            if any(_round_of(line) == number for line in file.read_bytes().splitlines()):
                yield file.parent.name


def _round_of(line: bytes) -> object:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event.get("round") if isinstance(event, dict) else None


def _reports(traces: Path, number: int, named: Iterator[str]) -> dict[str, Path]:
    """Reports that the status names, and those whose file name has the round's number."""
    own = re.compile(rf"(?<![a-z])round_?{number}(?!\d)")
    folders = [traces / layer / "reports" for layer in LAYERS]
    wanted = {Path(text).name for text in named}
    return {
        f"{folder.parent.name}/{file.name}": file
        for folder in folders
        for file in sorted(folder.glob("*.md"))
        if file.is_file() and not file.is_symlink() and (file.name in wanted or own.search(file.name))
    }


def _texts_under(value: Any, keys: tuple[str, ...], wanted: bool = False) -> Iterator[str]:
    """Every text under one of the keys, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts_under(inner, keys, wanted or key in keys)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_under(inner, keys, wanted)
    elif wanted and isinstance(value, str):
        yield value


def _refused(message: str) -> SkillBankError:
    return SkillBankError(Problem(Code.MISSING_EVIDENCE, message))
