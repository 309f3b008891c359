from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.config import DatasetConfig
from astraflow.dataflow.rows import load_rows


def test_a_sections_own_keys_win_over_the_runs_split_and_seed() -> None:
    keys = {"dataset_fn": "reasoning_gym", "name": "chain_sum", "size": 3, "split": "test"}
    config = DatasetConfig.model_validate(keys)
    rows = load_rows(config, split="train", seed=1, tokenizer=tiny_tokenizer())
    assert len(rows) == 3
    assert rows == load_rows(config, split="anything", seed=1, tokenizer=None)
    assert rows != load_rows(config, split="train", seed=2, tokenizer=None)
