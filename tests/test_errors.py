import pytest

from astraflow import errors
from astraflow.errors import ConfigError, RewardError, UnknownNameError, boundary, brief_traceback


def test_an_unknown_name_lists_the_known_ones_and_suggests_the_nearest() -> None:
    error = UnknownNameError("reward", "math_verfy", ["math_verify", "code"])
    assert str(error) == "unknown reward 'math_verfy', did you mean 'math_verify'?; known: code, math_verify"


def test_a_foreign_exception_is_attributed_once() -> None:
    with pytest.raises(RewardError, match="reward score: ZeroDivisionError: division by zero") as caught:
        with boundary(RewardError, "reward score"):
            1 / 0  # noqa: B018
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_our_own_errors_pass_a_boundary_unchanged() -> None:
    mine = ConfigError("x")
    with pytest.raises(ConfigError) as caught, boundary(RewardError, "outer"):
        raise mine
    assert caught.value is mine


def test_interrupts_pass_a_boundary() -> None:
    with pytest.raises(KeyboardInterrupt), boundary(RewardError, "outer"):
        raise KeyboardInterrupt


def test_every_error_is_drawn_in_the_tree() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.AstraFlowError)]
    assert len(classes) > 10
    assert [c.__name__ for c in classes if c.__name__ not in (errors.__doc__ or "")] == []


def test_a_traceback_starts_with_the_error_and_keeps_the_innermost_frames() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("here")
        [even, odd][n % 2](n)

    def even(n: int) -> None:
        deep(n - 1)

    def odd(n: int) -> None:
        deep(n - 1)

    try:
        deep(10)
    except ValueError as error:
        text = brief_traceback(error)
    assert text.startswith("ValueError: here\n")
    assert text.count("  File ") == 4
