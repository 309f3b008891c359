"""Parameters ↔ wire bytes. The only file of weight transfer that imports torch.

Exactness rule: an engine may hold a tensor in the wire dtype or in a wider one that contains it (a float32 engine,
a bfloat16 wire). Then converting to the wire dtype gives back the very bits that were published, and the engine's
own digest, taken in the wire dtype, equals the manifest's. Any other pair is refused. The trainer may hold any
floating dtype: what it publishes is rounded once, here, and that is what the version is.

Sharding: a DTensor that is cut along its first axis, or not at all, is written by its ranks side by side, each at its
own offset of the shared buffer. Any other is gathered and written by rank 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.core.model.finite import all_finite, describe_non_finite
from astraflow.core.weight_manager.delta import Change, replace
from astraflow.core.weight_manager.digest import parts_digest, tensor_digest
from astraflow.core.weight_manager.handover import agreed
from astraflow.core.weight_manager.layout import lay_out, match_names
from astraflow.errors import WeightError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

NamedTensors = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
"""Parameters by Hugging Face name; pairs, where an order or a generator is at hand."""
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in WIRE_DTYPES}
WIRE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
CONTAINED_IN: dict[str, tuple[str, ...]] = {
    "float32": (),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "float8_e4m3fn": ("float16", "bfloat16", "float32"),
    "float8_e5m2": ("float16", "bfloat16", "float32"),
}
"""For each wire dtype, the wider ones that hold all of its values."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""By element size: the dtype that stands for the bits."""
CHUNK = 2**18
"""Elements exchanged or converted at once: bounds the memory beside the tensor and stays inside a core's cache."""


def describe(
    named_params: Mapping[str, Tensor], wire_dtype: str | None, aliases: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[TensorEntry, ...]:
    """Lay out parameters for the wire. Tied ones (the same storage, or named in `aliases`) are listed once, with
    aliases.

    wire_dtype None: each tensor keeps its own dtype. WeightError for what is not a floating parameter.
    """
    names: dict[str, list[str]] = {name: list(others) for name, others in (aliases or {}).items()}
    hidden = {other for others in names.values() for other in others}
    owner: dict[tuple[object, ...], str] = {}
    for name, param in named_params.items():
        if name in hidden:
            continue
        first = owner.setdefault(_identity(name, param), name)
        if first != name:
            hidden.add(name)
            names.setdefault(first, []).append(name)
    placed = [
        (name, tuple(param.shape), wire_dtype or _wire_name(name, param))
        for name, param in named_params.items()
        if name not in hidden and _wire_name(name, param)
    ]
    return lay_out(placed, {name: tuple(others) for name, others in names.items()})


class WireBuffer:
    """A version's buffer as tensors in wire dtype: where a trainer's parameters are written, converted on the way."""

    def __init__(self, layout: Iterable[TensorEntry], buffer: memoryview) -> None:
        self._views = {entry.name: (entry, wire_view(entry, buffer)) for entry in layout}
        self._pages = wire_view(
            TensorEntry(name="", shape=(len(buffer),), dtype="float8_e5m2", offset=0, nbytes=len(buffer), digest=""),
            buffer,
        )
        self._pinned = False

    def pin(self) -> None:
        """Lock the buffer's pages, so that a GPU copies into it by itself (cudaHostRegister); once, before writing."""
        error = int(torch.cuda.cudart().cudaHostRegister(self._pages.data_ptr(), self._pages.numel(), 0))  # type: ignore[no-untyped-call]
        if error:
            raise WeightError(f"the weights' shared memory cannot be pinned for the GPU: CUDA error {error}")
        self._pinned = True

    def unpin(self) -> None:
        """Before the memory is given back; again is fine."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pages.data_ptr())  # type: ignore[no-untyped-call]
            self._pinned = False

    def write(
        self, named_params: Mapping[str, Tensor], rank: int = 0, shared: bool = True, finite: bool = False
    ) -> None:
        """Copy what this rank has of every tensor; all ranks call it with the same names, in the same order.

        `shared`: all ranks write into this buffer; otherwise everything is gathered for rank 0. Returns when the
        parameters may be overwritten. WeightError: one is missing, changed shape or does not fit the dtype; with
        `finite`, also one that holds NaN or infinity.
        """
        written = []
        for name, (entry, view) in self._views.items():
            param = named_params.get(name)
            if param is None or tuple(param.shape) != entry.shape:
                found = "missing" if param is None else f"of shape {tuple(param.shape)}"
                raise WeightError(f"{name} is {found} in what is published; it was initialised as {entry.shape}")
            source, rows = _own_part(param.detach(), rank, shared)
            if source is None:
                continue
            target = view if rows is None else view[rows[0] : rows[1]]
            if source.is_cuda:  # rounded on the device: half the bytes cross the bus
                rounded = source.to(target.dtype)
                target.copy_(rounded, non_blocking=self._pinned)
                written.append((name, source, all_finite(rounded), target.dtype))
            else:
                target.copy_(source)
                written.append((name, source, all_finite(target), target.dtype))
        if any(source.is_cuda for _, source, _, _ in written):
            torch.cuda.current_stream().synchronize()
        for name, source, whole, dtype in written:
            if whole:
                continue
            if all_finite(source):
                wire = WIRE_NAMES[dtype]
                raise WeightError(f"{name} holds values that are not finite as {wire}; publish it in a wider type")
            if finite:
                raise WeightError(f"{name}: {describe_non_finite(source)}; such weights are not published")


def _is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Tell a DTensor. Its module takes half a second to import; a process that has not done so holds none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _own_part(param: Tensor, rank: int, shared: bool) -> tuple[Tensor | None, tuple[int, int] | None]:
    """What this rank writes of a parameter, and as which rows (None: all of it); (None, None) where others do."""
    if not _is_sharded(param):
        return (param, None) if rank == 0 else (None, None)
    if not shared or not all(p.is_replicate() or p.is_shard(0) for p in param.placements):
        whole = param.full_tensor()  # a collective: every rank takes part, one writes
        return (whole, None) if rank == 0 else (None, None)
    place = param.device_mesh.get_coordinate()
    if place is None or any(
        placement.is_replicate() and at for placement, at in zip(param.placements, place, strict=True)
    ):
        return None, None  # a replica of what its first rank writes
    local = param.to_local()
    if not any(placement.is_shard() for placement in param.placements):
        return local, None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    return (local, (offset[0], offset[0] + shape[0])) if shape[0] else (None, None)


class TorchRanks:
    """The ranks of a trainer's default process group, as publishing needs them (see publish.Ranks)."""

    LONGEST = 512
    """Bytes of a text that rank 0 shares."""

    def __init__(self) -> None:
        gpu = dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")

    def share(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        data = torch.zeros(self.LONGEST, dtype=torch.uint8, device=self._device)
        encoded = text.encode()
        if len(encoded) > self.LONGEST:
            raise WeightError(f"{len(encoded)} bytes are more than ranks share at once")
        data[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        dist.broadcast(data, 0)
        return bytes(data.cpu().tolist()).rstrip(b"\0").decode()

    def agree(self, mine: bool) -> bool:
        """Whether all ranks say yes; nobody goes on before everybody has answered."""
        answer = torch.tensor([int(mine)], device=self._device)
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        return bool(answer.item())


class TensorHandover:
    """Handover (see there) for an engine's torch tensors, on any device and with any strides."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = {name: weight.detach() for name, weight in weights.items()}
        self._exchanged: list[tuple[Tensor, Tensor]] = []
        self._overwritten: list[_Overwritten] = []

    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        self._exchanged, self._overwritten = [], []
        matched = match_names(self._weights, manifest)
        storages = {entry.name: self._storages(entry, matched[entry.name]) for entry in manifest.tensors}
        for entry in manifest.tensors:
            fresh = wire_view(entry, payload)
            *others, last = storages[entry.name]
            for held in others:  # an alias with a storage of its own takes a copy
                self._put(held, fresh.clone())
            self._put(last, fresh)

    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        self._exchanged, self._overwritten = [], []
        matched = match_names(self._weights, manifest)
        storages = [self._storages(entry, matched[entry.name]) for entry in manifest.tensors]
        for change in changes:
            dtype = TORCH_DTYPES[manifest.tensors[change.index].dtype]
            for held in storages[change.index]:
                self._overwritten.append(_Overwritten.by(change, held, dtype))

    def digests(self, manifest: Manifest) -> tuple[str, ...]:
        matched = match_names(self._weights, manifest)
        return tuple(
            agreed(
                entry.digest, [wire_digest(held, entry.dtype) for held in self._storages(entry, matched[entry.name])]
            )
            for entry in manifest.tensors
        )

    def rollback(self) -> None:
        while self._exchanged:
            held, kept = self._exchanged.pop()
            held.copy_(kept)
        while self._overwritten:
            self._overwritten.pop().put_back()

    def _put(self, held: Tensor, fresh: Tensor) -> None:
        """Exchange chunk by chunk, and note in the undo log where what was overwritten lies."""
        for a, b in _chunks(held):
            target, values = (held, fresh) if held.dim() == 0 else (held[a:b], fresh[a:b])
            before = target.to(values.dtype, copy=True)
            if target.dtype == values.dtype or _same_bits(before.to(target.dtype), target):
                target.copy_(values)
                values.copy_(before)
                self._exchanged.append((target, values))
            else:  # weights that never came from the wire and do not fit it: keep them as they are
                self._exchanged.append((target, target.clone()))
                target.copy_(values)

    def _storages(self, entry: TensorEntry, names: Iterable[str]) -> list[Tensor]:
        """The engine's distinct tensors for an entry, checked to be able to hold it exactly."""
        distinct: dict[tuple[object, ...], Tensor] = {}
        for name in names:
            held = self._weights[name]
            if tuple(held.shape) != entry.shape:
                raise WeightError(
                    f"{name} has shape {tuple(held.shape)} in the engine and {entry.shape} in the manifest"
                )
            dtype = WIRE_NAMES.get(held.dtype, str(held.dtype))
            if dtype != entry.dtype and dtype not in CONTAINED_IN[entry.dtype]:
                raise WeightError(f"{name} is {dtype} in the engine, which cannot hold {entry.dtype} exactly")
            distinct.setdefault(_identity(name, held), held)
        return list(distinct.values())


class _Overwritten:
    """Some elements of one engine tensor, and what was there before a delta came."""

    def __init__(self, elements: np.ndarray | Tensor, where: Any, kept: np.ndarray | Tensor) -> None:
        self._elements = elements
        self._where = where
        self._kept = kept

    @classmethod
    def by(cls, change: Change, held: Tensor, dtype: torch.dtype) -> _Overwritten:
        """Write a change into a tensor of the wire `dtype` or a wider one.

        A contiguous CPU tensor in wire dtype is seen as integers by numpy, whose indexed writes take a third of torch's
        time; everything else goes through torch, on the tensor's device.
        """
        if held.device.type == "cpu" and held.dtype == dtype and held.is_contiguous():
            bits = held.flatten().view(_INTEGERS[held.element_size()]).numpy().view(change.values.dtype)
            where: Any = slice(None) if change.positions is None else change.positions
            return cls(bits, where, replace(bits, change))
        signed = np.ascontiguousarray(change.values).view(f"i{change.values.itemsize}")
        values = torch.from_numpy(signed.copy()).view(dtype).to(held.device, held.dtype)
        if change.positions is None or held.dim() == 0:
            fresh = values.view(held.shape)
            done = cls(held, ..., held.clone())
            held.copy_(fresh)
            return done
        positions = torch.from_numpy(change.positions).to(held.device)
        where = torch.unravel_index(positions, held.shape)
        done = cls(held, where, held[where])
        held[where] = values
        return done

    def put_back(self) -> None:
        self._elements[self._where] = self._kept  # type: ignore[assignment]


def wire_view(entry: TensorEntry, buffer: memoryview) -> Tensor:
    """A tensor of the entry's dtype and shape over its bytes in a version's buffer."""
    dtype = TORCH_DTYPES[entry.dtype]
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)  # frombuffer refuses to see nothing
    count = entry.nbytes // dtype.itemsize
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=entry.offset).view(entry.shape)


def wire_digest(tensor: Tensor, dtype: str) -> str:
    """xxh3-128 of a tensor's bytes in wire dtype, as 32 hex digits."""
    tensor = tensor.detach()
    if tensor.dtype == TORCH_DTYPES[dtype] and tensor.device.type == "cpu" and tensor.is_contiguous():
        return tensor_digest(_bytes(tensor))
    slices = (tensor if tensor.dim() == 0 else tensor[a:b] for a, b in _chunks(tensor))
    return parts_digest(_bytes(part.to(device="cpu", dtype=TORCH_DTYPES[dtype]).contiguous()) for part in slices)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


def _chunks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of the first axis of about CHUNK elements; a scalar is one range, an empty tensor none."""
    if tensor.numel() == 0:
        return
    rows = tensor.shape[0] if tensor.dim() else 1
    step = max(1, CHUNK * rows // tensor.numel())
    for a in range(0, rows, step):
        yield a, min(a + step, rows)


def _same_bits(left: Tensor, right: Tensor) -> bool:
    """Equality that tells -0 from 0 and finds NaN equal to itself."""
    integers = _INTEGERS[left.element_size()]
    return torch.equal(left.contiguous().view(integers), right.contiguous().view(integers))


def _identity(name: str, tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor; empty and meta tensors have no address and are only themselves."""
    if _is_sharded(tensor):
        tensor = tensor.to_local()
    if tensor.data_ptr() == 0 or tensor.numel() == 0:
        return (name,)
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _wire_name(name: str, param: Tensor) -> str:
    if param.dtype not in WIRE_NAMES and param.dtype != torch.float64:
        raise WeightError(f"{name} has dtype {param.dtype}; weights travel as {', '.join(sorted(WIRE_NAMES.values()))}")
    return WIRE_NAMES.get(param.dtype, "float32")
