"""The scripted engine as a process: echoes the prompt. Real updates reach it, as arrays of the model's files."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file

from astraflow.core.data import ModelRequest
from astraflow.core.text import load_tokenizer
from astraflow.raas.config import RaaSSettings
from astraflow.raas.engines.scripted import ScriptedEngine


def open_engine(model_id: str, settings: RaaSSettings) -> ScriptedEngine:
    """Answer each prompt with its own ids, then an end token."""
    ends = load_tokenizer(settings.tokenizer_path).eos_token_ids
    weights = {}
    for file in sorted(Path(settings.model_paths[model_id]).glob("*.safetensors")):
        weights.update(load_file(file))

    def echo(request: ModelRequest) -> list[int]:
        prompt = [int(token) for token in request.input_ids if int(token) not in ends]
        return (prompt + list(ends[:1])) or prompt

    return ScriptedEngine(model_id, echo, eos_token_ids=ends, version=-1, weights=weights)
