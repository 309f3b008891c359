"""Why samples have no reward, for people: `<run_dir>/failures.json`, and a line in the log for each new kind.

A kind is a reason and the first line of its text. Its first sample is kept, row and innermost frames, and all of them
are counted. Nothing in a run reads the file back but the log of the run's next life, which counts on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from astraflow.core.data.trajectory import EpisodeResult
from astraflow.core.observability.failures import Failure, read_failures
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.curation import Occurrence, why_failed, word

log = logging.getLogger(__name__)

MOST_KINDS = 100
"""Kinds that are told apart: texts with a number in them are endless."""
OTHER = "(further kinds)"


class FailureLog:
    """Counts samples without a reward by kind."""

    def __init__(self, run_dir: RunDirectory | None) -> None:
        """run_dir None: nothing is kept."""
        self._path = None if run_dir is None else run_dir.failures
        known = [] if self._path is None else read_failures(self._path)
        self._kinds = {failure.kind: failure for failure in known}

    def observe(self, occurrence: Occurrence, episodes: Iterable[EpisodeResult]) -> None:
        """Note what failed in a finished group."""
        for why in filter(None, map(why_failed, episodes)):
            reason, _, detail = why.partition("\n")
            failure = Failure(
                reason=word(reason),
                detail=detail or reason,
                task_id=occurrence.task_id,
                prompt_id=occurrence.prompt_id,
                group_id=occurrence.group_id,
            )
            self._note(failure)

    def _note(self, failure: Failure) -> None:
        if failure.kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            failure = msgspec.structs.replace(failure, detail=OTHER)
        known = self._kinds.get(failure.kind)
        if known is None:
            log.warning("a sample of row %d (task %s) has no reward: %s: %s", *failure.place, *failure.why)
        samples = 1 if known is None else known.samples + 1
        self._kinds[failure.kind] = msgspec.structs.replace(known or failure, samples=samples)
        if samples & (samples - 1) == 0:  # at each doubling, so that a run of failures does not write a file a sample
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_name(f".{self._path.name}")
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(list(self._kinds.values())), indent=1) + b"\n")
            draft.replace(self._path)
        except OSError as error:  # people read this, and it ends no run
            log.warning("why samples failed is not kept: %s: %s", self._path, error.strerror)
