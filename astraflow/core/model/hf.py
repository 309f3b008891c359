"""Hugging Face layout: config.json, safetensors (sharded or not), tokenizer files. Reading and writing is bit-exact."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from astraflow.core.model.config import ModelConfig
from astraflow.core.model.decoder import Decoder
from astraflow.core.model.finite import all_finite, describe_non_finite
from astraflow.core.text.tokenizer import load_tokenizer
from astraflow.errors import ConfigError, WeightError, boundary

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
"""Size of a shard above which weights are split, as Hugging Face does it."""


def load_model(path: str | Path, dtype: torch.dtype | str | None = None) -> tuple[Decoder, ModelConfig]:
    """Read a model from a Hugging Face directory; `dtype` None keeps the one it is stored in.

    Raises ConfigError for an architecture or key that is not supported, WeightError where tensors are missing, left
    over, of another shape or not finite, or tied tensors differ.
    """
    config = ModelConfig.read(path)
    tensors = dict(read_tensors(path))
    wanted = torch_dtype(dtype) if dtype is not None else _stored_dtype(tensors)
    with _Unfilled():
        decoder = Decoder(config)
    shapes = {name: weight.shape for name, weight in named_weights(decoder)}
    _check_names(tensors, shapes, config, Path(path))
    loaded = {name: tensors[name].to(wanted, copy=True) for name in shapes}
    for name, weight in loaded.items():
        if wrong := non_finite(tensors[name], weight.dtype, weight):
            raise WeightError(f"{path}: {name}: {wrong}")
    decoder.load_state_dict(loaded, assign=True)
    return decoder.to(wanted), config


def non_finite(stored: Tensor, dtype: torch.dtype, converted: Tensor | None = None) -> str | None:
    """Say what in a stored tensor is not finite, or would not be as `dtype`; None where all of it is."""
    if all_finite(stored.to(dtype) if converted is None else converted):
        return None
    if not all_finite(stored):
        return f"{describe_non_finite(stored)}; expected finite weights"
    return f"{_name(stored.dtype)} values leave the range of {_name(dtype)}"


class _Unfilled(TorchFunctionMode):
    """Modules made inside leave their parameters as allocated: pages that nobody touches cost nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def save_model(
    directory: str | Path,
    weights: Decoder | Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer_path: str | Path | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write weights, config.json and, where given, the files of the tokenizer at `tokenizer_path`.

    `weights` is a decoder or Hugging Face names → tensors, tied tensors once. The same tensors give the same bytes.
    What an earlier save left of weights goes. config.json names the dtype of what is written, for readers take it from
    there, and the weights are as readable as config.json is.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    named = dict(named_weights(weights)) if isinstance(weights, Decoder) else dict(weights)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
    shards = _shards(tensors, max_shard_bytes)
    config.write(target, _name(reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))))
    _remove_weights(target)
    files: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: tensors[name] for name in names}, target / file, metadata={"format": "pt"})
        shutil.copymode(target / "config.json", target / file)  # safetensors makes it readable for its owner alone
        files |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    if tokenizer_path is not None:
        load_tokenizer(tokenizer_path).save(target)


def named_weights(decoder: Decoder) -> list[tuple[str, Tensor]]:
    """Return (Hugging Face name, tensor) of every weight in a fixed order: the live tensors, tied ones once."""
    return [(name, parameter.data) for name, parameter in decoder.named_parameters()]


def tied_aliases(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Return the other names under which a tensor of `named_weights` is known."""
    return {"model.embed_tokens.weight": ("lm_head.weight",)} if config.tie_word_embeddings else {}


def read_tensors(path: str | Path) -> Iterable[tuple[str, Tensor]]:
    """Yield (name, tensor) of a directory's safetensors files.

    A whole model.safetensors comes before an index, as in transformers. WeightError where two files hold one name.
    """
    directory = Path(path)
    seen: dict[str, str] = {}
    for file in weight_files(directory):
        try:
            with safe_open(directory / file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - a safetensors handle, not a dict
                    if name in seen:
                        raise WeightError(f"{directory}: {name} is in {seen[name]} and in {file}")
                    seen[name] = file
                    yield name, opened.get_tensor(name)
        except SafetensorError as error:
            raise WeightError(f"{directory / file}: {error}") from error


def weight_files(directory: Path) -> list[str]:
    """The names of the files that hold a directory's weights; ConfigError where one of them is missing."""
    files = [SINGLE]
    if not (directory / SINGLE).is_file() and (directory / INDEX).is_file():
        files = indexed_files(directory)
    for file in files:
        if not (directory / file).is_file():
            raise ConfigError(f"{directory} holds no {file}")
    return files


def indexed_files(directory: Path) -> list[str]:
    """The names of the files that a directory's index lists; none without an index."""
    if not (directory / INDEX).is_file():
        return []
    with boundary(ConfigError, str(directory / INDEX)):
        return sorted(set(json.loads((directory / INDEX).read_text("utf-8"))["weight_map"].values()))


def torch_dtype(name: torch.dtype | str) -> torch.dtype:
    """Return the floating dtype of a configuration's word ("float32", "bfloat16", "float16")."""
    found = name if isinstance(name, torch.dtype) else getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(f"'{name}' is not a floating dtype")
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _remove_weights(directory: Path) -> None:
    """Remove the weights of an earlier save: a reader takes a file that is there for a part of the model."""
    for path in [directory / SINGLE, directory / INDEX, *directory.glob("model-*-of-*.safetensors")]:
        path.unlink(missing_ok=True)


def _check_names(tensors: dict[str, Tensor], shapes: dict[str, torch.Size], config: ModelConfig, where: Path) -> None:
    """Hold what was read against what the decoder has; tied copies and rotary buffers of old checkpoints are let go."""
    for name, aliases in tied_aliases(config).items():
        for alias in aliases:
            if alias not in tensors:
                continue
            copy = tensors.pop(alias)
            if not torch.equal(copy, tensors.setdefault(name, copy)):
                raise WeightError(f"{where}: {alias} is tied to {name} but differs from it")
    for name in [name for name in tensors if name.endswith("rotary_emb.inv_freq")]:
        del tensors[name]
    missing, unknown = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if missing or unknown:
        raise WeightError(f"{where}: {_some('missing', missing)}; {_some('not part of this model', unknown)}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise WeightError(f"{where}: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(shape)}")


def _some(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{what}: {shown or 'none'}"


def _stored_dtype(tensors: dict[str, Tensor]) -> torch.dtype:
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) != 1:
        raise WeightError(f"tensors have several dtypes ({', '.join(sorted(map(str, kinds)))}): name the one to use")
    return kinds.pop()


def _shards(tensors: dict[str, Tensor], limit: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards
