"""LAW 18. After each swap, resume and scale-up the engine's own digest equals the manifest's; canary prompts' logprobs
agree with the trainer within tolerance; "the version moved, the digest did not" is an alarm.

Here: the canaries and the alarm, with a trainer's model, a real sender agent and the embedded engine.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from astraflow.core.data import Canary, GenerationHyperparameters, ModelRequest
from astraflow.core.model import Decoder, named_weights, tied_aliases
from astraflow.core.model.presets import new_model
from astraflow.core.protocol.messages import RaaSNotifyVersionRequest, RaaSNotifyVersionResult, VersionState
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.canary import canary_tokens
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.version_log import Alarm, ServedVersion, VersionLog, read_logs, served_log
from astraflow.errors import WeightError
from astraflow.raas.engines.base import Weights
from astraflow.raas.engines.embedded.engine import EmbeddedEngine
from astraflow.raas.engines.embedded.scoring import score
from astraflow.raas.updater import Updater

VOCAB = 50


class System:
    """A trainer's model and a RaaS engine of the same architecture."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.folder = folder
        self.decoder = new_model("tiny-0.2m", vocab_size=VOCAB, seed=1)
        self.manager = WeightManager("model0", "secret", wire_dtype=str(dtype).removeprefix("torch."), strategy="delta")
        self.manager.initialize(dict(named_weights(self.decoder)), tied_aliases(self.decoder.config))
        self.engine_decoder = new_model("tiny-0.2m", vocab_size=VOCAB, seed=2).to(dtype)
        self.engine = EmbeddedEngine("model0", self.engine_decoder, max_running_requests=2, version=-1)
        self.served: list[VersionState] = []
        self.updater = Updater(
            self.engine,
            lambda: Receiver("127.0.0.1", 1, "secret", strategy="delta"),
            self._manifest_of,
            lambda model_id, state: self.served.append(state),
            log=VersionLog(served_log(folder, "raas-0")),
            name="raas-0",
        )

    async def _manifest_of(self, endpoint: str, version: int) -> object:
        return self.manager.manifest(version)

    async def publish(self, version: int, decoder: Decoder | None = None) -> RaaSNotifyVersionResult:
        """Publish the trainer's weights, with what `decoder` (or the trainer's own) makes of the canaries."""
        tokens = canary_tokens(VOCAB)
        canaries = tuple(
            Canary(tokens=ids, logprobs=tuple(map(float, values)))
            for ids, values in zip(tokens, score(decoder or self.decoder, tokens, 1.0), strict=True)
        )
        self.manager.offload(dict(named_weights(self.decoder)), version, canaries=canaries)
        self.manager.wait_delta_ready()
        return await self.updater.notify(
            RaaSNotifyVersionRequest(
                model_id="model0",
                version=version,
                sender_endpoint=self.manager.get_sender_endpoint(),
                manifest=self.manager.manifest(version),
            )
        )

    def step(self) -> None:
        """Change a few weights."""
        with torch.no_grad():
            self.decoder.model.embed_tokens.weight[3] += 0.25


def run(folder: Path, body: Callable[[System], Awaitable[None]], dtype: torch.dtype = torch.float32) -> None:
    async def whole() -> None:
        system = System(folder, dtype)
        try:
            await body(system)
        finally:
            await system.updater.close()
            await system.engine.close()
            system.manager.shutdown()

    asyncio.run(whole())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_that_computes_the_same_serves_in_full_and_by_delta(tmp_path: Path, dtype: torch.dtype) -> None:
    async def body(system: System) -> None:
        modes = []
        for version in range(3):
            modes.append((await system.publish(version)).pull_result["mode"])
            system.step()
        assert modes == ["full", "delta", "delta"]
        assert [state.number for state in system.served] == [0, 1, 2]
        assert system.updater.state.alarms == 0
        gaps = [line.canary_gap for line in read_logs(system.folder) if isinstance(line, ServedVersion)]
        assert len(gaps) == 3
        assert all(gap is not None and gap < (1e-4 if dtype == torch.float32 else 0.1) for gap in gaps)

    run(tmp_path, body, dtype)


def test_right_bytes_and_wrong_arithmetic_are_an_alarm_and_are_not_served(tmp_path: Path) -> None:
    async def body(system: System) -> None:
        await system.publish(0)
        before = {name: weight.clone() for name, weight in named_weights(system.engine_decoder)}
        system.engine_decoder.cos.zero_()  # the weights are right, the rotary table is not
        system.step()
        with pytest.raises(
            WeightError, match=r"version 1 is held bit for bit and computes something else.*rolled back"
        ):
            await system.publish(1)
        assert [state.number for state in system.served] == [0]
        assert system.engine.get_version() == 0
        for name, weight in named_weights(system.engine_decoder):
            assert torch.equal(weight, before[name])
        assert system.updater.state.alarms == 2  # the delta, then the full version
        alarms = [line for line in read_logs(system.folder) if isinstance(line, Alarm)]
        assert [alarm.version for alarm in alarms] == [1, 1]

    run(tmp_path, body)


def test_no_token_is_sampled_under_a_version_that_its_canaries_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof is a part of the swap: what runs meanwhile waits for the verdict, and so does what arrives."""

    async def body(system: System) -> None:
        await system.publish(0)
        update = system.engine.update

        async def heard_late(version: int, apply: Callable[[Weights], object]) -> object:
            """An update of which a busy event loop hears a few tokens later."""
            result = await update(version, apply)
            sampled = system.engine.load().tokens_generated
            while system.engine.load().tokens_generated < sampled + 5:
                await asyncio.sleep(0)
            return result

        monkeypatch.setattr(system.engine, "update", heard_late)
        verdict, versions, running = asyncio.Event(), set[int](), asyncio.Event()

        async def generate(name: str) -> None:
            for turn in itertools.count():
                gconfig = GenerationHyperparameters(max_new_tokens=300, ignore_eos=True)
                request = ModelRequest(rid=f"{name}-{turn}", input_ids=np.array([3, 4]), gconfig=gconfig)
                answer = await system.engine.agenerate(request, lambda *_: running.set())
                versions.update(answer.output_versions.tolist())
                if verdict.is_set():
                    return

        flights = [asyncio.create_task(generate(name)) for name in "abc"]  # one more than run at once
        await running.wait()
        system.step()
        with pytest.raises(WeightError, match="computes something else"):
            await system.publish(1, decoder=new_model("tiny-0.2m", vocab_size=VOCAB, seed=9))
        verdict.set()
        await asyncio.gather(*flights)
        assert versions == {0}
        monkeypatch.undo()
        await system.publish(2)
        assert system.engine.get_version() == 2

    run(tmp_path, body)


def test_canaries_that_cannot_be_scored_leave_the_version_that_was(tmp_path: Path) -> None:
    async def body(system: System) -> None:
        await system.publish(0)
        before = {name: weight.clone() for name, weight in named_weights(system.engine_decoder)}
        system.step()
        system.manager.offload(
            dict(named_weights(system.decoder)), 1, canaries=(Canary(tokens=(1, VOCAB + 5), logprobs=(-1.0,)),)
        )
        system.manager.wait_delta_ready()
        with pytest.raises(WeightError):
            await system.updater.notify(
                RaaSNotifyVersionRequest(
                    model_id="model0",
                    version=1,
                    sender_endpoint=system.manager.get_sender_endpoint(),
                    manifest=system.manager.manifest(1),
                )
            )
        assert system.engine.get_version() == 0
        for name, weight in named_weights(system.engine_decoder):
            assert torch.equal(weight, before[name])

    run(tmp_path, body)


def test_a_trainer_that_scores_other_weights_than_it_publishes_is_found_out(tmp_path: Path) -> None:
    async def body(system: System) -> None:
        with pytest.raises(WeightError, match="computes something else"):
            await system.publish(0, decoder=new_model("tiny-0.2m", vocab_size=VOCAB, seed=9))
        assert system.served == []

    run(tmp_path, body)


def test_a_version_that_moved_on_the_old_bytes_is_an_alarm_and_is_served(tmp_path: Path) -> None:
    """It may be a learning rate of 0; it may be an adapter that was never merged. Somebody has to look."""

    async def body(system: System) -> None:
        await system.publish(0)
        result = await system.publish(1)
        assert (result.ok, result.version, system.updater.state.alarms) == (True, 1, 1)
        (alarm,) = (line for line in read_logs(system.folder) if isinstance(line, Alarm))
        assert alarm.reason == "the version moved from 0 to 1, the digest did not"
        system.step()
        await system.publish(2)
        assert system.updater.state.alarms == 1

    run(tmp_path, body)
