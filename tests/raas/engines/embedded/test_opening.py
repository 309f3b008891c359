import asyncio
from pathlib import Path

from astraflow.core.config import ExperimentConfig
from astraflow.core.model.hf import save_model
from astraflow.core.model.presets import new_model
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.raas.config import EmbeddedConfig, RaaSConfig, RaaSModelConfig, RaaSSettings, RolloutConfig
from astraflow.raas.engines.registry import ENGINE_REGISTRY


def test_settings_become_an_engine_that_serves_no_version_yet(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save(tmp_path / "tokenizer")
    decoder = new_model("tiny-0.2m", tokenizer.vocab_size, 0)
    save_model(tmp_path / "model", decoder, decoder.config, tmp_path / "tokenizer")
    embedded = EmbeddedConfig(context_length=64, max_running_requests=2)
    settings = RaaSSettings(
        experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(tmp_path), wire_dtype="bfloat16"),
        raas=RaaSConfig(models={"model0": RaaSModelConfig(embedded=embedded)}),
        rollout=RolloutConfig(),
        model_paths={"model0": str(tmp_path / "model")},
        tokenizer_path=str(tmp_path / "tokenizer"),
        dataflow_urls=[],
        uid="raas-0",
        run_dir=str(tmp_path),
    )
    engine = ENGINE_REGISTRY.resolve("embedded")("model0", settings)
    assert (engine.get_version(), engine.context_length) == (-1, 64)
    assert {str(weight.dtype) for weight in engine._weights.values()} == {"torch.bfloat16"}
    asyncio.run(engine.close())
