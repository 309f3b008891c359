"""Stop strings: which sequences have just completed one (law 5: seen by the engine, not by the reader of the text)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

import numpy as np

from astraflow.core.text import Tokenizer
from astraflow.raas.engines.base import Output
from astraflow.raas.engines.embedded.scheduler import Sequence


class TextStops:
    """Running sequences that have stop strings."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._watched: list[Sequence] = []

    def watch(self, sequences: Iterable[Sequence]) -> None:
        """Look at these from now on, while they run."""
        self._watched += [one for one in sequences if one.request.gconfig.stop]

    def stopped(self, rows: list[Sequence | None], peek: Callable[[list[int]], list[Output]]) -> list[int]:
        """Rows whose last token has completed one of their stop strings; `peek` gives what rows have sampled."""
        if not self._watched or self._tokenizer is None:
            return []
        self._watched = [one for one in self._watched if rows[one.row] is one]
        outputs = peek([one.row for one in self._watched])
        return [
            one.row
            for one, output in zip(self._watched, outputs, strict=True)
            if _completes(self._tokenizer, one, output.tokens)
        ]


def _completes(tokenizer: Tokenizer, sequence: Sequence, tokens: np.ndarray) -> bool:
    """Whether the last token completes a stop string."""
    config = sequence.request.gconfig
    if len(tokens) <= config.min_new_tokens:  # an end token, too, may come after so many at the earliest
        return False
    # a token covers at least one byte; a few more, because decoding may need the tokens of a whole character
    size = max(len(text.encode()) for text in config.stop) + 4
    window = tokens[-size:]
    if len(window) < size:
        window = np.concatenate([sequence.sampled, window])[-size:]
    before = tokenizer.decode(window[:-1], skip_special_tokens=False)
    after = tokenizer.decode(window, skip_special_tokens=False)
    # the last token's own text begins here; what ends before it was seen at an earlier token, or came too early
    same = (a == b for a, b in zip(before, after, strict=False))
    begins = sum(1 for _ in takewhile(bool, same))
    return any((at := after.rfind(text)) >= 0 and at + len(text) > begins for text in config.stop)
