"""Events become traces: skills claim their calls first, the rest is grouped freely."""

from astraflow.evolution.traces.segmenters.base import SEGMENTERS, Segmenter, Timeline
from astraflow.evolution.traces.segmenters.chain import segment, segment_session

__all__ = ["SEGMENTERS", "Segmenter", "Timeline", "segment", "segment_session"]
