"""LAW 19. Tied weights, buffers and adapters are in the manifest once, with their aliases."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import Tensor

from astraflow.core.data import Manifest
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.layout import buffer_length
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.tensors import TensorHandover, WireBuffer, describe
from astraflow.errors import WeightError

EMBED = torch.arange(12.0).reshape(4, 3)


def publish(params: dict[str, Tensor], aliases: dict[str, tuple[str, ...]] | None = None) -> tuple[Manifest, bytearray]:
    layout = describe(params, "float32", aliases)
    data = bytearray(buffer_length(layout))
    WireBuffer(layout, memoryview(data)).write(params)
    return build_manifest("model0", 0, layout, memoryview(data)), data


@pytest.mark.parametrize(
    ("params", "aliases"),
    [
        ({"embed": EMBED, "head": EMBED}, None),
        ({"embed": EMBED, "head": EMBED.view(4, 3)}, None),
        ({"embed": EMBED}, {"embed": ("head",)}),
        ({"embed": EMBED, "head": EMBED}, {"embed": ("head",)}),
        ({"embed": EMBED, "head": EMBED.clone()}, {"embed": ("head",)}),
    ],
)
def test_a_tied_tensor_is_listed_once(params: dict[str, Tensor], aliases: dict[str, tuple[str, ...]] | None) -> None:
    manifest, data = publish(params, aliases)
    assert [(entry.name, entry.aliases) for entry in manifest.tensors] == [("embed", ("head",))]
    assert len(data) == manifest.nbytes == 48


def test_different_views_of_one_storage_are_different_tensors() -> None:
    fused = torch.arange(12.0)
    manifest, _ = publish({"q": fused[:6], "k": fused[6:], "all": fused, "turned": EMBED.T, "embed": EMBED})
    assert [entry.name for entry in manifest.tensors] == ["q", "k", "all", "turned", "embed"]
    assert all(entry.aliases == () for entry in manifest.tensors)


@pytest.mark.parametrize("names", [("embed",), ("head",), ("embed", "head")])
@pytest.mark.parametrize("tied", [True, False])
def test_an_engine_may_hold_it_under_any_of_its_names(names: tuple[str, ...], tied: bool) -> None:
    """Tied or not: every storage under every name gets the values, and is undone."""
    manifest, data = publish({"embed": EMBED}, {"embed": ("head",)})
    shared = torch.ones(4, 3)
    engine = {name: shared if tied else torch.ones(4, 3) for name in names}
    handover = TensorHandover(engine)
    handover.apply(manifest, memoryview(data))
    assert all(torch.equal(value, EMBED) for value in engine.values())
    assert digest_of(engine, manifest) == manifest.digest
    handover.rollback()
    assert all(torch.equal(value, torch.ones(4, 3)) for value in engine.values())


def test_an_alias_that_was_missed_is_found_out() -> None:
    manifest, _ = publish({"embed": EMBED}, {"embed": ("head",)})
    engine = {"embed": EMBED.clone(), "head": torch.zeros(4, 3)}
    assert digest_of(engine, manifest) != manifest.digest
    with pytest.raises(WeightError, match="no tensor embed"):
        digest_of({"other": EMBED}, manifest)


def test_it_travels_once() -> None:
    async def body() -> None:
        params = {"embed": EMBED, "head": EMBED, "norm": torch.ones(3)}
        with WeightManager("model0", "secret") as manager:
            manager.initialize(params)
            manager.offload(params, 0)
            receiver = Receiver("127.0.0.1", 1, "secret")
            payload = await receiver.pull(manager.get_sender_endpoint(), manager.manifest(0))
            await receiver.close()
        assert payload.bytes == 64 + 12
        shared = torch.zeros(4, 3)
        engine = {"embed": shared, "head": shared, "norm": torch.zeros(3)}
        payload.apply(engine)
        assert torch.equal(shared, EMBED)

    asyncio.run(body())
