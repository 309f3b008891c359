"""One rank of a sharded trainer, started by test_sharded_publish.py: rank, world size, rendezvous, same host or not."""

from __future__ import annotations

import asyncio
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.tensors import TorchRanks, wire_digest

SHAPES = {
    "even": (8, 3),
    "uneven": (5, 3),
    "short": (1, 4),
    "vector": (7,),
    "columns": (4, 6),
    "copied": (3,),
    "plain": (2, 2),
}


class FarApart(TorchRanks):
    """Ranks that find themselves on different hosts."""

    def share(self, text: str) -> str:
        return super().share(text).replace(":", ".elsewhere:", 1)


def whole(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def sharded(version: int, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    placements = {"columns": Shard(1), "copied": Replicate()}
    return {
        name: value if name == "plain" else distribute_tensor(value, mesh, [placements.get(name, Shard(0))])
        for name, value in whole(version).items()
    }


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world_size)
    mesh = init_device_mesh("cpu", (world_size,))
    ranks = FarApart() if sys.argv[4] == "apart" else TorchRanks()
    with WeightManager("model0", "secret", wire_dtype="bfloat16") as manager:
        manager.initialize(sharded(0, mesh), ranks=ranks, rank=rank)
        for version in range(3):
            manager.offload(sharded(version, mesh), version, rank, world_size)
            if rank == 0:
                check(manager, version)
    dist.destroy_process_group()


def check(manager: WeightManager, version: int) -> None:
    """What arrives is what one rank would have published."""
    manifest = manager.manifest(version)
    expected = [wire_digest(value, "bfloat16") for value in whole(version).values()]
    assert [entry.digest for entry in manifest.tensors] == expected, f"version {version}"
    engine = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    asyncio.run(pull(manager, version, engine))
    assert digest_of(engine, manifest) == manifest.digest


async def pull(manager: WeightManager, version: int, engine: dict[str, torch.Tensor]) -> None:
    receiver = Receiver("127.0.0.1", 1, "secret")
    payload = await receiver.pull(manager.get_sender_endpoint(), manager.manifest(version))
    payload.apply(engine)
    await receiver.close()


if __name__ == "__main__":
    main()
    # caches of DTensor keep the process group alive, and its threads abort now and then while an interpreter ends
    os._exit(0)
