"""Whatever names something from outside is 1 to 128 printable ASCII characters, or is refused with its field named."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from astraflow.core.config import ExperimentConfig
from astraflow.core.data import GenerationHyperparameters, ModelRequest, Value, encode
from astraflow.core.data.codec import decode
from astraflow.core.dataset.loading import check_row
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import in_process
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows, trajectory
from astraflow.errors import AstraFlowError

LONGEST = "~ " * 64
PEER = ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [])
NOT_IDS = ["a" * 129, "tab\t", "line\n", "\nline", "\x00", "\x7f", "é", "名", "\u202eRTL", "a" * 100_000]


def on_dataflow(tmp_path: Path, call: Callable[[httpx.AsyncClient], Any]) -> Any:
    settings = DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(tmp_path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}},
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": "none",
            "run_dir": str(tmp_path),
        }
    )

    async def body() -> Any:
        async with Rehearsal(settings).running() as rehearsal:
            rehearsal.raas[PEER.url] = PEER
            headers = {
                "Authorization": f"Bearer {rehearsal.TOKEN}",
                "Content-Type": "application/msgpack",
                "X-AstraFlow-Schema": "1",
            }
            transport = in_process(rehearsal.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://dataflow", headers=headers) as client:
                return await call(client)

    return asyncio.run(body())


def registration(**changes: Any) -> dict[str, Any]:
    capabilities = {"models": ["model0"], **changes.pop("capabilities", {})}
    return {"uid": "r", "raas_url": PEER.url, "capabilities": capabilities, **changes}


REQUESTS: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "uid": lambda text: ("/register_raas", registration(uid=text)),
    "incarnation": lambda text: ("/register_raas", registration(capabilities={"incarnation": text})),
    "models": lambda text: ("/register_raas", registration(capabilities={"models": ["model0", text]})),
    "leaving uid": lambda text: ("/deregister_raas", {"uid": text}),
    "model_id": lambda text: ("/notify_version", {"version": 0, "step": 0, "model_id": text}),
    "saved model_id": lambda text: ("/save_buffer", {"model_id": text}),
}


@pytest.mark.parametrize("field", REQUESTS)
def test_dataflow_takes_ids_and_nothing_else(field: str, tmp_path: Path) -> None:
    async def call(client: httpx.AsyncClient) -> None:
        for text in NOT_IDS:
            path, body = REQUESTS[field](text)
            reply = await client.post(path, content=encode(body))
            assert reply.status_code == 400, (text[:40], reply.text[:200])
            assert field.split()[-1] in decode(reply.content, m.ErrorBody).error
            assert len(reply.content) < 1000
        path, body = REQUESTS[field](LONGEST)
        assert (await client.post(path, content=encode(body))).status_code in (200, 409)  # 409: there is no such model

    on_dataflow(tmp_path, call)


@pytest.mark.parametrize("field", ["task_id", "workflow_id", "ack", "task_ids", "rid", "affinity"])
@pytest.mark.parametrize("text", NOT_IDS, ids=lambda text: ascii(text[:8]))
def test_a_raas_takes_ids_and_nothing_else(field: str, text: str) -> None:
    def request(text: str) -> Any:
        task = m.Task(task_id=text if field == "task_id" else "t", group_id=1, data={})
        prompt = np.arange(3, dtype=np.int32)
        generation: dict[str, Any] = {"rid": "r", **({field: text} if field in ("rid", "affinity") else {})}
        made: dict[str, Callable[[], Any]] = {
            "task_id": lambda: m.SubmitRequest(tasks=[task]),
            "workflow_id": lambda: m.SubmitRequest(tasks=[task], workflow_id=text),
            "ack": lambda: m.PullRequest(ack=["a", text]),
            "task_ids": lambda: m.CancelRequest(task_ids=["a", text]),
        }
        if field in made:
            return made[field]()
        return ModelRequest(input_ids=prompt, gconfig=GenerationHyperparameters(), **generation)

    decode(encode(request(LONGEST)), type(request(LONGEST)))
    with pytest.raises(AstraFlowError, match=field):
        decode(encode(request(text)), type(request(text)))


@pytest.mark.parametrize("text", NOT_IDS, ids=lambda text: ascii(text[:8]))
def test_files_hold_ids_and_nothing_else(text: str, tmp_path: Path) -> None:
    [row] = example_rows(1)
    with pytest.raises(AstraFlowError, match=r"row 0: column 'task_id'.*printable ASCII"):
        check_row({**row, "task_id": text}, "dataset a: row 0")
    for name in ("experiment_name", "trial_name"):
        with pytest.raises(ValueError, match=name):
            ExperimentConfig(**{"experiment_name": "e", "trial_name": "t", "fileroot": str(tmp_path), name: text})
    names = {"eval_datasets": {text: {"dataset_fn": "a:b"}}}
    with pytest.raises(ValueError, match="eval_datasets"):
        DataflowSettings.model_validate(
            {
                "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(tmp_path)},
                "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}, **names},
                "gconfigs": {"model0": {"n_samples": 2}},
                "tokenizer_path": "none",
                "run_dir": str(tmp_path),
            }
        )


@pytest.mark.parametrize("text", NOT_IDS, ids=lambda text: ascii(text[:8]))
def test_what_a_workflow_returns_names_its_roles_by_ids(text: str) -> None:
    sample = trajectory(m.Task(task_id="t", group_id=1, data={}), 0, Value(1.0), (0,))
    for name in ("agent", "model_id", "task_id"):
        with pytest.raises(AstraFlowError, match=name):
            type(sample)(**{**{f: getattr(sample, f) for f in sample.__struct_fields__}, name: text}).check()


def test_the_longest_ids_go_all_the_way(tmp_path: Path) -> None:
    """A row's task_id and a dataset's name are a part of what a RaaS knows a task by, which is an id, too."""
    settings = DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": LONGEST, "trial_name": LONGEST, "fileroot": str(tmp_path)},
            "dataflow": {
                "rollout_dataset": {"dataset_fn": "a.b:c"},
                "eval_datasets": {"d" * 128: {"dataset_fn": "a.b:c", "eval_workflow": "greedy"}},
                "eval_workflows": {"greedy": {"workflow_cls": "rlvr"}},
            },
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": "none",
            "run_dir": str(tmp_path),
        }
    )
    rows = [{**row, "task_id": f"{number:064d}" * 2} for number, row in enumerate(example_rows(20))]
    peer = ScriptedRaaS("u" * 60, Rehearsal.TOKEN, lambda task, version: [0.0, 1.0])

    async def body() -> None:
        async with Rehearsal(settings, rows=rows, eval_rows={"d" * 128: rows[:2]}).running() as rehearsal:
            await rehearsal.join(peer)
            trainer = rehearsal.trainer(8)
            reply = await trainer.begin(run_eval=True)
            assert reply.eval_results is not None
            await trainer.train()
            assert len({group_id for _, group_id, _ in peer.submitted}) == len(peer.submitted)

    asyncio.run(asyncio.wait_for(body(), 60))


def test_an_id_that_is_refused_is_shown_in_short() -> None:
    [row] = example_rows(1)
    with pytest.raises(AstraFlowError) as refusal:
        check_row({**row, "task_id": "x" * 10_000}, "row 0")
    assert re.search(r"x{40}'… has 10000 characters, expected 1 to 128 printable ASCII", str(refusal.value))
    assert len(str(refusal.value)) < 200
