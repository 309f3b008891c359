"""What GSM8K-like tasks pay: 1 for the right number, and a little for writing it where it is looked for.

The little is what a model learns from before it is ever right: a group in which nobody is right still has a gradient.
"""

from __future__ import annotations

from astraflow.core.workflow.reward.form import ends_in_answer_line
from astraflow.core.workflow.reward.math_verify import math_verify_reward
from astraflow.core.workflow.reward.weighted_sum import WeightedSum

FORMAT_WEIGHT = 0.1
"""Small against 1, so that evaluation's count of right answers (reward ≥ 1) is not moved by form."""

math_format_reward = WeightedSum(correct=(1.0, math_verify_reward), format=(FORMAT_WEIGHT, ends_in_answer_line))
