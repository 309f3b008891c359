"""Where suggestions come from. Each proposer turns findings into suggestions; none of them changes a skill."""

from astraflow.evolution.traces.proposers.base import PROPOSERS, Context, Proposer

__all__ = ["PROPOSERS", "Context", "Proposer"]
