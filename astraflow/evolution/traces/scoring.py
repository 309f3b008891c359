"""Scores from a program of one's own: it is given the skill's text in a file and prints a score for each case."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

import msgspec

from astraflow.errors import ConfigError, WorkflowError
from astraflow.evolution.traces.optimizer import Score

PLACE = "{skill_file}"


def command_score(command: str) -> Score:
    """Return a Score that runs `command` with `{skill_file}` replaced by the path of a SKILL.md.

    Its standard output ends with one line, a JSON object of case → score in [0, 1]. ConfigError: the command does not
    name `{skill_file}`. The score raises WorkflowError where the program fails or prints something else.
    """
    parts = shlex.split(command)
    if not any(PLACE in part for part in parts):
        raise ConfigError(f"score command '{command}': it must name {PLACE}, or it would score nothing")

    def score(text: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "SKILL.md"
            file.write_text(text, "utf-8")
            given = [part.replace(PLACE, str(file)) for part in parts]
            try:
                done = subprocess.run(given, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
            except OSError as error:
                raise WorkflowError(f"score command {given[0]}: {error.strerror}") from error
        if done.returncode:
            raise WorkflowError(f"score command '{command}': exit code {done.returncode}")
        return _scores(done.stdout, command)

    return score


def _scores(output: bytes, command: str) -> dict[str, float]:
    lines = output.strip().splitlines()
    try:
        scores = msgspec.json.decode(lines[-1] if lines else b"", type=dict[str, float])
    except msgspec.DecodeError as error:
        raise WorkflowError(f"score command '{command}': its last line is no JSON object of scores: {error}") from error
    if not scores or not all(0 <= value <= 1 for value in scores.values()):
        raise WorkflowError(f"score command '{command}': expected scores between 0 and 1, at least one")
    return scores
