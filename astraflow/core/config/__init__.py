"""Configuration: YAML files, interpolation and overrides become frozen, strictly typed sections."""

from astraflow.core.config.experiment import ExperimentConfig
from astraflow.core.config.load import Tree, build, json_schema, load_tree, read_settings, to_yaml, write_settings
from astraflow.core.config.section import OpenSection, Section, struct_field

__all__ = [
    "ExperimentConfig",
    "OpenSection",
    "Section",
    "Tree",
    "build",
    "json_schema",
    "load_tree",
    "read_settings",
    "struct_field",
    "to_yaml",
    "write_settings",
]
