"""How work is spread over instances."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.routing import Affinity, fit, share_out


@pytest.mark.parametrize(
    ("room", "groups", "shares"),
    [
        ({"a#1": 4, "b#2": 4}, 4, {"a#1": 2, "b#2": 2}),
        ({"a#1": 4, "b#2": 1}, 3, {"a#1": 3}),
        ({"a#1": 4, "b#2": 1}, 9, {"a#1": 4, "b#2": 1}),
        ({"a#1": 0, "b#2": -3}, 5, {}),
        ({}, 5, {}),
        ({"a#1": 4}, 0, {}),
    ],
)
def test_shares_follow_free_room(room: dict[str, int], groups: int, shares: dict[str, int]) -> None:
    assert share_out(room, dict.fromkeys(room, 4), groups) == shares


@given(rooms=st.lists(st.integers(-2, 6), max_size=5), groups=st.integers(0, 30))
def test_shares_never_exceed_room_and_waste_none(rooms: list[int], groups: int) -> None:
    room = {f"{uid}#{i + 1}": free for i, (uid, free) in enumerate(zip("abcde", rooms, strict=False))}
    shares = share_out(room, dict.fromkeys(room, 6), groups)
    assert all(0 < share <= room[key] for key, share in shares.items())
    assert sum(shares.values()) == min(groups, sum(free for free in rooms if free > 0))


@pytest.mark.parametrize(
    ("shares", "allowed", "fitted"),
    [
        ({"new": 3, "old": 3}, {"new": 6, "old": 6}, {"old": 3, "new": 3}),
        ({"new": 3, "old": 3}, {"new": 6, "old": 2}, {"old": 2, "new": 3}),
        ({"new": 4, "old": 4}, {"new": 6, "old": 4}, {"old": 4, "new": 2}),
        ({"new": 2, "old": 2}, {"new": 2, "old": -1}, {"old": 0, "new": 2}),
        ({}, {}, {}),
    ],
)
def test_older_versions_fill_the_first_places_only(
    shares: dict[str, int], allowed: dict[str, int], fitted: dict[str, int]
) -> None:
    assert fit(shares, allowed) == fitted


def test_scarce_work_goes_where_it_is_done_first() -> None:
    room, taken = {"fast": 8, "slow": 8}, {"fast": 0, "slow": 0}
    weights = {"fast": 8.0, "slow": 1.0}
    assert share_out(room, weights, 4, taken) == {"fast": 4}
    assert share_out(room, weights, 9, taken) == {"fast": 8, "slow": 1}
    # with enough of it everybody works
    assert share_out(room, weights, 16, taken) == {"fast": 8, "slow": 8}


def test_what_an_instance_has_already_counts() -> None:
    assert share_out({"a": 4, "b": 4}, {"a": 4.0, "b": 4.0}, 2, {"a": 3, "b": 0}) == {"b": 2}


def test_sessions_stay_where_they_were_while_there_is_room() -> None:
    affinity = Affinity()
    assert affinity.divide({1: "x", 2: "y", 3: None}, {"a": 2, "b": 1}) == {"a": [1, 2], "b": [3]}
    assert affinity.divide({4: "y", 5: "z", 6: "x"}, {"b": 1, "a": 2}) == {"b": [5], "a": [4, 6]}
    # no room at its own: elsewhere, and from then on there
    assert affinity.divide({7: "x", 8: "x"}, {"a": 1, "b": 1}) == {"a": [7], "b": [8]}
    assert affinity.divide({9: "x"}, {"b": 1, "a": 0}) == {"b": [9]}


def test_sessions_are_forgotten_the_oldest_first() -> None:
    affinity = Affinity(most=1)
    affinity.divide({1: "x", 2: "y"}, {"a": 2})
    assert affinity.divide({3: "x", 4: "y"}, {"b": 1, "a": 1}) == {"b": [3], "a": [4]}


@given(
    sessions=st.lists(st.sampled_from(["x", "y", None]), max_size=12),
    shares=st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_every_group_goes_to_one_instance_and_shares_are_kept(sessions: list[str | None], shares: list[int]) -> None:
    total = sum(shares)
    groups = dict(enumerate([*sessions, *[None] * total][:total]))
    by_key = dict(zip("abc", shares, strict=True))
    affinity = Affinity()
    for _ in range(2):
        given = affinity.divide(groups, by_key)
        assert {key: len(ids) for key, ids in given.items()} == {key: n for key, n in by_key.items() if n}
        assert sorted(g for ids in given.values() for g in ids) == sorted(groups)
