from typing import Any

from astraflow.launch.patience import Patience

WHO = "trainer of model0 at version 3"


def status(on: str, since: float = 100.0, who: str = WHO) -> dict[str, Any]:
    return {"waiting": [{"who": who, "on": on, "since": since}]}


def test_a_long_wait_is_told_once_and_again_when_it_has_changed_ever_more_rarely() -> None:
    patience = Patience()
    told = [text for now in range(100, 400) for text in patience.look(status(f"{now // 10} dropped"), None, now)]
    assert told == [
        f"{WHO} has waited 20 s on 12 dropped",
        f"{WHO} has waited 50 s on 15 dropped",
        f"{WHO} has waited 110 s on 21 dropped",
        f"{WHO} has waited 230 s on 33 dropped",
    ]
    same = Patience()
    assert sum(len(same.look(status("8 more groups"), None, now)) for now in range(100, 1000)) == 1


def test_waits_that_end_are_never_told() -> None:
    patience = Patience()
    for now in range(100, 200):
        begun = now - now % 15
        assert patience.look(status("x", begun, f"trainer at version {begun}"), None, now) == []
    assert patience.look({}, None, 300) == []


def test_slow_steps_are_no_news() -> None:
    patience = Patience()
    told = [text for now in range(100, 200) for text in patience.look(status("x"), 30.0, now)]
    assert told == [f"{WHO} has waited 90 s on x"]


def test_a_request_that_is_made_anew_goes_on_with_the_wait() -> None:
    patience = Patience()
    told = [text for now in range(100, 130) for text in patience.look(status("x", since=now), None, now)]
    assert told == [f"{WHO} has waited 20 s on x"]
