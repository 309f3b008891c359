"""The dataset cursor."""

import pytest

from astraflow.dataflow.data_acquisition import DatasetCursor
from astraflow.errors import DataError


def test_each_epoch_is_a_seeded_permutation() -> None:
    cursor, again, other = DatasetCursor(5, 1), DatasetCursor(5, 1), DatasetCursor(5, 2)
    drawn = [cursor.next() for _ in range(15)]
    assert drawn == [again.next() for _ in range(15)] != [other.next() for _ in range(15)]
    epochs = [[prompt for prompt, epoch in drawn if epoch == e] for e in range(3)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert (cursor.epoch, cursor.position) == (2, 5)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        DatasetCursor(0, 1)
