"""The killable workers."""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from astraflow.core.data import Invalid, Value
from astraflow.core.data.codec import encode
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper
from astraflow.core.workflow.reward.messages import Call
from astraflow.core.workflow.reward.pool import WINDOW, RewardPool
from astraflow.core.workflow.reward.shipping import ship
from astraflow.core.workflow.reward.worker import MOST_PRINTED


def act(prompt: str, completions: str, *ids: list[int]) -> float:
    if completions == "die":
        os._exit(3)
    if completions == "count modules":
        return float("torch" in sys.modules)
    time.sleep(float(completions))
    return os.getpid()


def stuck_in_c(prompt: str, completions: str, *ids: list[int]) -> float:
    return float(len(str(7 ** (7**8))))  # minutes inside one C call that keeps the interpreter's lock


async def leaves(prompt: str, completions: str, *ids: list[int]) -> float:
    if completions == "exit":
        sys.exit(3)
    raise asyncio.CancelledError


def prints(prompt: str, completions: str, *ids: list[int]) -> float:
    print(completions)  # noqa: T201
    print(completions, file=sys.stderr)  # noqa: T201
    return 1.0


def alive(pid: int) -> bool:
    """Whether the process still runs (a zombie that nobody reaps does not)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


def call(completions: str) -> Call:
    return Call("", completions, [], [], {})


def test_the_one_that_overruns_is_killed_and_the_others_are_computed() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        shipment = ship(act)
        first = await pool.run(shipment, call("0"), 30)
        limits = {"0": 30, "60": 0.3, "die": 30}
        got = await asyncio.gather(*(pool.run(shipment, call(c), limits[c]) for c in ("0", "60", "0", "die", "0")))
        assert got[0] == first, "the same worker"
        assert got[1] == Invalid("timeout")
        assert isinstance(got[3], Invalid)
        assert got[3].reason == "crash"
        assert "status 3" in got[3].detail
        assert isinstance(got[2], Value)
        assert isinstance(got[4], Value)
        assert len({first.value, got[2].value, got[4].value}) == 3, "each kill made a fresh worker"
        pool.close()

    asyncio.run(body())


def test_a_deadline_does_not_count_the_time_in_line() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        shipment = ship(act)
        got = await asyncio.gather(*(pool.run(shipment, call("0.4"), 2.0) for _ in range(6)))
        assert all(isinstance(reward, Value) for reward in got), "2.4 s in line, each within its two seconds"
        pool.close()

    asyncio.run(body())


def test_a_reply_that_came_while_the_loop_was_busy_counts() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        shipment = ship(act)
        await pool.run(shipment, call("0"), 30)
        waiting = asyncio.create_task(pool.run(shipment, call("0.05"), 0.2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(1.5)
        assert isinstance(await waiting, Value)
        pool.close()

    asyncio.run(body())


def test_code_that_keeps_the_interpreters_lock_is_killed_too() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        await pool.run(ship(act), call("0"), 30)
        start = time.monotonic()
        assert await pool.run(ship(stuck_in_c), call(""), 0.2) == Invalid("timeout")
        assert time.monotonic() - start < 30, "it would go on for minutes"
        pool.close()

    asyncio.run(body())


def test_several_workers_share_the_line() -> None:
    async def body() -> None:
        pool = RewardPool(2)
        got = await asyncio.gather(*(pool.run(ship(act), call("0.1"), 30) for _ in range(6)))
        assert len({reward.value for reward in got}) == 2
        pool.close()

    asyncio.run(body())


def test_a_function_that_cannot_be_imported_answers_each_call_with_the_reason() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        got = await asyncio.gather(*(pool.run(ship("no.such:module"), call(""), 30) for _ in range(3)))
        assert all(isinstance(reward, Invalid) and "no.such" in reward.detail for reward in got)
        assert isinstance(await pool.run(ship(act), call("0"), 30), Value)
        pool.close()

    asyncio.run(body())


def test_a_module_that_kills_its_importer_costs_one_worker(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos._exit(9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def body() -> None:
        pool = RewardPool(1)
        first = await pool.run(ship("deadly:fn"), call(""), 30)
        assert isinstance(first, Invalid)
        assert "deadly:fn could not be loaded" in first.detail
        assert await pool.run(ship("deadly:fn"), call(""), 30) == first
        assert pool._workers == []
        pool.close()

    asyncio.run(body())


def test_a_module_that_cannot_be_loaded_is_tried_once_for_all_that_wait(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fatal.py").write_text(f"import os\nopen({str(tmp_path / 'tries')!r}, 'a').write('x')\nos._exit(9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def body() -> None:
        pool = RewardPool(1)
        got = await asyncio.gather(*(pool.run(ship("fatal:fn"), call(""), 30) for _ in range(5 * WINDOW)))
        assert all(isinstance(reward, Invalid) and "could not be loaded" in reward.detail for reward in got)
        assert (tmp_path / "tries").read_text() == "x"
        pool.close()

    asyncio.run(body())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["exit", "cancel"])
def test_a_reward_that_leaves_the_interpreter_is_a_crash(workers: int, how: str) -> None:
    async def body() -> None:
        reward = AsyncRewardWrapper(leaves, max_workers=workers)
        got = await reward("", how, [], [])
        assert isinstance(got, Invalid)
        assert got.reason == "crash"
        assert got.detail.startswith({"exit": "SystemExit: 3\n", "cancel": "CancelledError: \n"}[how])
        assert "in leaves" in got.detail
        reward.close()

    asyncio.run(body())


class MuteError(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


def awkward(prompt: str, completions: str, *ids: list[int]) -> object:
    """Give or raise what cannot be encoded as it is."""
    if completions == "half":
        raise ValueError("cannot read \ud83d")
    if completions == "mute":
        raise MuteError
    if completions == "long":
        raise ValueError("x" * 10_000_000)
    given: dict[str, object] = {
        "reason": Invalid("\ud83d"),
        "detail": Invalid("why", "\ud83d"),
        "part": Value(1.0, {"\ud83d": 1.0}),
        "numpy": Value(np.float32(0.5)),  # type: ignore[arg-type]
        "numpy part": Value(1.0, {"a": np.float32(0.5)}),  # type: ignore[dict-item]
        "object": Value(1.0, {"a": object()}),  # type: ignore[dict-item]
        "list": Value(1.0, [1.0]),  # type: ignore[arg-type]
        "number": Invalid(3),  # type: ignore[arg-type]
    }
    return given.get(completions, float(os.getpid()))


AWKWARD = ["half", "mute", "long", "reason", "detail", "part", "numpy", "numpy part", "object", "list", "number"]


@pytest.mark.parametrize("workers", [0, 1])
def test_whatever_a_reward_gives_or_raises_is_answered_and_its_worker_lives(workers: int) -> None:
    async def body() -> None:
        reward = AsyncRewardWrapper(awkward, max_workers=workers)
        first = await reward("", "pid", [], [])
        for case in AWKWARD:
            got = await reward("", case, [], [])
            assert len(encode(got)) < 20_000, case
            assert isinstance(got, Value) == (case in ("part", "numpy", "numpy part")), case
            assert "ended with status" not in getattr(got, "detail", ""), case
        assert await reward("", "pid", [], []) == first, "the worker was started anew"
        reward.close()

    asyncio.run(body())


def test_what_a_reward_prints_is_bounded_and_what_it_gives_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    async def body() -> None:
        pool = RewardPool(1)
        got = [await pool.run(ship(prints), call("debug\n" * 1000), 30) for _ in range(40)]
        assert got == [Value(1.0)] * 40
        pool.close()

    asyncio.run(body())
    for output in capfd.readouterr():
        assert output.startswith("debug\n")
        assert len(output) < 2 * MOST_PRINTED
        assert output.count("what this reward worker prints from here on is left out") == 1


def test_a_cancelled_call_is_not_computed_and_harms_nobody() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        shipment = ship(act)
        await pool.run(shipment, call("0"), 30)
        waiting = asyncio.create_task(pool.run(shipment, call("0.05"), 30))
        await asyncio.sleep(0.01)
        waiting.cancel()
        assert isinstance(await pool.run(shipment, call("0"), 30), Value)
        pool.close()

    asyncio.run(body())


def test_closing_cancels_what_is_still_wanted_and_leaves_no_process() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        waiting = asyncio.create_task(pool.run(ship(act), call("60"), 90))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (process,) = pool._processes
        pool.close()
        assert process.popen.returncode is not None
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(body())


def test_a_pool_outlives_its_event_loop_and_its_processes_do_not_outlive_it() -> None:
    pool = RewardPool(1)
    asyncio.run(pool.run(ship(act), call("0"), 30))
    (first,) = pool._processes
    asyncio.run(pool.run(ship(act), call("0"), 30))
    (second,) = pool._processes
    assert first.popen.returncode is not None
    del pool
    gc.collect()
    assert second.popen.returncode is not None


def test_workers_end_with_their_parent_even_when_stuck_and_load_no_torch() -> None:
    script = textwrap.dedent(
        """
        import asyncio, os, signal
        from astraflow.core.workflow.reward.messages import Call
        from astraflow.core.workflow.reward.pool import WINDOW, RewardPool
        from astraflow.core.workflow.reward.shipping import ship

        def modules(prompt, completions, *ids):
            import sys
            return float("torch" in sys.modules)

        def stuck(prompt, completions, *ids):
            return float(len(str(7 ** (7 ** 8))))

        async def main():
            pool = RewardPool(1)
            print((await pool.run(ship(modules), Call("", "", [], [], {}), 5)).value, flush=True)
            asyncio.get_running_loop().create_task(pool.run(ship(stuck), Call("", "", [], [], {}), 90))
            await asyncio.sleep(0.1)
            print(pool._processes[0].popen.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    loaded, pid = done.stdout.split()
    assert loaded == "0.0"
    deadline = time.monotonic() + 60
    while alive(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
