"""What is examined: the configuration with the tokenizer, model and rows that it names, as far as they can be had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from astraflow.core.config import Tree
from astraflow.core.data.trajectory import Row
from astraflow.core.model.config import ModelConfig
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.dataflow.config import DatasetConfig, WorkflowConfig
from astraflow.launch.config import RunConfig, eval_workflow
from astraflow.launch.doctor.machine import Machine


@dataclass(frozen=True)
class Dataset:
    """A dataset of the configuration with the workflow that plays it."""

    path: str
    """Of its section."""
    config: DatasetConfig
    workflow: WorkflowConfig
    workflow_path: str
    split: str

    @property
    def scored(self) -> bool:
        """Does it evaluate, rather than train?"""
        return self.path.startswith("dataflow.eval_datasets.")


@dataclass(frozen=True)
class Subject:
    """One configuration on one machine."""

    config: RunConfig
    tree: Tree
    machine: Machine
    tokenizer: Tokenizer | None = None
    """None where it cannot be had yet."""
    model: ModelConfig | None = None
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Path of a dataset's section → its rows; without those that do not load."""

    @cached_property
    def datasets(self) -> tuple[Dataset, ...]:
        return tuple(_datasets(self.config))

    @cached_property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt of all datasets; None where no dataset or no tokenizer could be loaded."""
        if self.tokenizer is None or not self.rows:
            return None
        encode = self.tokenizer.encode_chat
        return max(len(encode(row["messages"])) for rows in self.rows.values() for row in rows)

    def longest_sequence(self, model_id: str) -> int | None:
        """Most tokens of a prompt with its answer; None where the prompts are not known."""
        prompt = self.longest_prompt
        return None if prompt is None else prompt + self.config.training_gconfig(model_id).max_new_tokens

    def section(self, path: str) -> Any:
        """The plain values of a section as the user wrote them."""
        node: Any = self.tree.values
        for part in path.split("."):
            node = node.get(part, {}) if isinstance(node, dict) else {}
        return node


def _datasets(config: RunConfig) -> Iterator[Dataset]:
    dataflow = config.dataflow
    sections = {f"dataflow.mixture.{name}": further for name, further in dataflow.mixture.items()}
    for path, rollouts in {"dataflow.rollout_dataset": dataflow.rollout_dataset, **sections}.items():
        yield Dataset(path, rollouts, dataflow.workflow_spec, "dataflow.workflow_spec", "train")
    for name, dataset in dataflow.eval_datasets.items():
        workflow_path = f"dataflow.eval_workflows.{dataset.eval_workflow}"
        yield Dataset(f"dataflow.eval_datasets.{name}", dataset, eval_workflow(config, dataset), workflow_path, "test")
