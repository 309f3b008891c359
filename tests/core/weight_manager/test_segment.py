from __future__ import annotations

import os

import pytest

from astraflow.core.weight_manager.segment import PAGE, WRITING, DoubleBuffer, path_of, read_mark


def test_what_one_process_writes_another_reads() -> None:
    buffer = DoubleBuffer.create(10)
    reader = DoubleBuffer.attach(os.dup(buffer.fd), 10)
    buffer.half(1)[:] = b"0123456789"
    buffer.finish(1, 5)
    assert (reader.version_in(0), reader.version_in(1)) == (WRITING, 5)
    assert bytes(reader.half(1)) == b"0123456789"
    assert read_mark(reader.fd, reader.offset(1)) == 5
    buffer.begin(1)
    assert reader.version_in(1) == WRITING
    reader.close()
    buffer.close()


def test_the_reader_cannot_write() -> None:
    buffer = DoubleBuffer.create(10)
    reader = DoubleBuffer.attach(os.dup(buffer.fd), 10)
    with pytest.raises(TypeError):
        reader.half(0)[0] = 1
    reader.close()
    buffer.close()


@pytest.mark.parametrize("length", [0, 1, PAGE, PAGE + 1])
def test_halves_lie_on_pages_and_apart(length: int) -> None:
    buffer = DoubleBuffer.create(length)
    assert buffer.offset(0) % PAGE == buffer.offset(1) % PAGE == 0
    assert buffer.offset(1) - PAGE >= buffer.offset(0) + length
    assert len(buffer.half(1)) == length
    buffer.close()


def test_the_memory_has_no_name_and_cannot_shrink() -> None:
    before = set(os.listdir("/dev/shm"))
    buffer = DoubleBuffer.create(10)
    assert set(os.listdir("/dev/shm")) == before
    with pytest.raises(PermissionError):
        os.truncate(buffer.fd, 0)
    path = path_of(buffer.fd)
    assert os.path.exists(path)
    buffer.close()
    assert not os.path.exists(path)


def test_closing_with_views_alive_is_safe() -> None:
    buffer = DoubleBuffer.create(10)
    view = buffer.half(0)
    buffer.close()
    view[0] = 1
