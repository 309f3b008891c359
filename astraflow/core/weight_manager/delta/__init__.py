"""Delta files: what changed from one version to the next, bit-exact, about 2.5 bytes per changed bfloat16 element.

container   the safetensors file: header, metadata, named byte tensors
kernels     the loops over elements and entries, compiled or in numpy
planes      the bytes of entries (gap, value), plane by plane, as deflate streams
encode      two full versions → a delta file
decode      a delta file → the changes, tensor by tensor, in pieces of bounded size

docs/delta-format.md is the format's public definition.
"""

from __future__ import annotations

from astraflow.core.weight_manager.delta.container import SCHEMA, Header
from astraflow.core.weight_manager.delta.decode import Change, DeltaReader, replace
from astraflow.core.weight_manager.delta.encode import EncodedDelta, encode_delta

__all__ = ["SCHEMA", "Change", "DeltaReader", "EncodedDelta", "Header", "encode_delta", "replace"]
