"""How work is spread over instances."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.routing import fit, share_out


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
