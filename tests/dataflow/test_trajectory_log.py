"""Sampled trajectories of each step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.data import Group, Value
from astraflow.core.observability.kept import PER_STEP, kept_rows
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import messages as m
from astraflow.dataflow.ledger import DropReason
from astraflow.dataflow.scripted import trajectory
from astraflow.dataflow.trajectory_log import TrajectoryLog, token_texts


def group(group_id: int, n: int = 4) -> Group:
    task = m.Task(task_id="t", group_id=group_id, data={})
    return Group(
        group_id=group_id,
        task_id="t",
        prompt_id=1,
        model_id="model0",
        trajectories=tuple(trajectory(task, i, Value(i / n), (3, 4)) for i in range(n)),
    )


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "trajectories").iterdir())


def read(run: Path, name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in (run / "trajectories" / name).read_bytes().splitlines()]


def test_a_few_of_each_kind_are_kept(tmp_path: Path) -> None:
    log = TrajectoryLog(RunDirectory(tmp_path), decode=lambda ids: "".join(chr(97 + i) for i in ids))
    for group_id in range(9):
        log.dropped(group(group_id), DropReason.STALE)
        log.trained(group(100 + group_id), step=7)
    log.collect("model0")()
    samples = [
        msgspec.json.decode(line)
        for line in (tmp_path / "trajectories" / "step_000007.jsonl").read_bytes().splitlines()
    ]
    assert [s["outcome"] for s in samples] == ["trained"] * PER_STEP + ["stale"] * PER_STEP
    assert len({s["group_id"] for s in samples}) == 4
    first = samples[0]
    assert (first["text"], first["ids"], first["mask"]) == ("abcd", [0, 1, 2, 3], [0, 0, 1, 1])
    assert first["pieces"] == ["a", "b", "c", "d"]
    assert (first["versions"], first["logprobs"], first["reward"]) == ([-1, -1, 3, 4], [0, 0, -0.5, -0.5], 0.0)


def test_what_cannot_be_decoded_is_written_as_such(tmp_path: Path) -> None:
    def decode(ids: Sequence[int]) -> str:
        raise OverflowError("out of range integral type conversion attempted")

    log = TrajectoryLog(RunDirectory(tmp_path), decode)
    log.trained(group(1), step=7)
    log.collect("model0")()
    first = read(tmp_path, "step_000007.jsonl")[0]
    assert first["text"] == "(cannot be decoded: OverflowError: out of range integral type conversion attempted)"
    assert (first["pieces"], first["ids"]) == (None, [0, 1, 2, 3])


def test_each_step_starts_anew(tmp_path: Path) -> None:
    log = TrajectoryLog(RunDirectory(tmp_path))
    log.trained(group(1), step=1)
    log.collect("model0")()
    log.trained(group(2), step=2)
    write = log.collect("model0")
    log.trained(group(3), step=3)
    write()
    assert files(tmp_path) == ["step_000001.jsonl", "step_000002.jsonl"]
    assert read(tmp_path, "step_000002.jsonl")[0]["text"] is None


def test_models_have_files_and_room_of_their_own(tmp_path: Path) -> None:
    log = TrajectoryLog(RunDirectory(tmp_path), further=["checker"])
    for model_id in ("model0", "checker"):
        for group_id in range(9):
            log.trained(msgspec.structs.replace(group(group_id), model_id=model_id), step=1)
    log.collect("model0")()
    log.collect("checker")()
    assert files(tmp_path) == [
        "step_000001.jsonl",
        "step_000001_checker.jsonl",
    ]
    assert [line["model_id"] for line in read(tmp_path, "step_000001_checker.jsonl")] == ["checker"] * PER_STEP


def test_nothing_to_write_writes_nothing(tmp_path: Path) -> None:
    TrajectoryLog(RunDirectory(tmp_path)).collect("model0")()
    TrajectoryLog(None).collect("model0")()
    assert files(tmp_path) == []


def test_the_trained_ones_are_those_that_the_trainer_keeps_too(tmp_path: Path) -> None:
    groups = [group(1, n=3), group(2, n=1), group(3, n=4)]
    log = TrajectoryLog(RunDirectory(tmp_path))
    for g in groups:
        log.trained(g, step=1)
    log.collect("model0")()
    lines = [
        msgspec.json.decode(line)
        for line in (tmp_path / "trajectories" / "step_000001.jsonl").read_bytes().splitlines()
    ]
    rows = [(g.group_id, t.sample_id) for g in groups for t in g.trajectories]
    kept = [rows[row] for row in kept_rows([group_id for group_id, _ in rows])]
    assert [(line["group_id"], line["sample_id"]) for line in lines] == kept


def test_a_character_of_several_tokens_is_shown_at_the_last() -> None:
    data = "aé€".encode()

    def decode(ids: Sequence[int]) -> str:
        return bytes(data[i] for i in ids).decode("utf-8", "replace")

    assert token_texts(decode, range(len(data))) == ["a", "", "é", "", "", "€"]
    broken = token_texts(lambda ids: "\ufffd" * len(ids), range(6))
    assert broken == ["", "", "", "\ufffd" * 4, "", ""]
