from astraflow.core.observability.kept import PER_GROUP, PER_STEP, kept_rows


def test_a_few_of_each_group_and_a_few_in_all() -> None:
    rows = kept_rows([7, 7, 7, 8, 9, 9, 9])
    assert rows == [0, 1, 3, 4]
    assert (PER_GROUP, PER_STEP) == (2, 4)


def test_a_small_batch_is_kept_whole() -> None:
    assert kept_rows([5]) == [0]
    assert kept_rows([]) == []
