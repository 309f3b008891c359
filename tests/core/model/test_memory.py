import ctypes
import sys

import pytest
import torch
from torch import nn

from astraflow.core.model.memory import return_free_memory, return_large_blocks


def test_a_small_model_keeps_its_blocks() -> None:
    assert not return_large_blocks(nn.Linear(8, 8))
    assert not return_free_memory(nn.Linear(8, 8))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_a_real_model_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def __init__(self, name: None) -> None: ...

        def mallopt(self, option: int, value: int) -> int:
            asked.append((option, value))
            return 1

        def malloc_trim(self, kept: int) -> int:
            asked.append((0, kept))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    with torch.device("meta"):
        model = nn.Linear(10_000, 10_000)
    assert return_large_blocks(model)
    assert return_free_memory(model)
    assert asked == [(-3, 2**20), (0, 0)]
