"""What a program's routes take and give, as OpenAPI 3.1, made from the message types and the handlers' annotations.

JSON routes are described whole, with an example. A msgpack route names the types of its body and its reply; their
schemas say which fields there are, and `WireArray` is how an array travels.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from functools import partial, reduce
from operator import or_
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from astraflow.core.data.codec import WireArray
from astraflow.core.protocol import messages as m

MSGPACK = "application/msgpack"
FRAMES = "application/vnd.astraflow.frames"
"""Replies in msgpack, each behind its length of 4 bytes, little-endian."""
REF = "#/components/schemas/{name}"

ADVICE = m.Advice(action="grow", instances=1, reason="trainers wait 40% of the time, 3% of the places are idle")

EXAMPLES: tuple[m.Reply, ...] = (
    m.DataflowStatus(
        status="ready",
        error=None,
        eval_running=False,
        agents={"model0": m.AgentStatus(raas_ready=True, trainer_ready=True, started=True, version=4)},
        raas_pool=m.PoolStatus(size=0, version=4, advice=ADVICE, instances=[]),
        waiting=[m.Waiting(who="trainer of model0 at version 4", on="5 more groups (3 of 8 ready)", since=1.8e9)],
        live={"step": 4, "version": 4, "ready": 3},
    ),
    m.PoolStatus(
        size=1,
        version=4,
        advice=ADVICE,
        instances=[
            m.PoolInstance(
                uid="raas-0",
                url="http://127.0.0.1:19090",
                version=4,
                verified=True,
                health="healthy",
                inflight=12,
                available=52,
                max_concurrency=64,
                failure_count=0,
                gpu_count=0,
                last_seen=1.8e9,
                reason="",
            )
        ],
    ),
    m.RaaSStatus(
        status="ready",
        engine_id="raas-0",
        backend="embedded",
        models=["model0"],
        versions={"model0": m.VersionState(number=4, digest="b1946ac92492d2347c6235b4d2611184", verified=True)},
        inflight=12,
        load={"running": 12.0, "queued": 0.0, "tokens_generated": 4096.0},
    ),
    m.Availability(available=52, inflight=12, max_concurrency=64, queued=0),
    m.SenderVersion(version=4),
    m.BufferInfo(single_buffer_length=32960, tensors_meta=[("model.embed_tokens.weight", ([103, 80], "float32"))]),
    m.SenderCapabilities(
        strategies=["full", "delta"],
        version=4,
        delta_ready=True,
        delta_base_version=3,
        delta_sparsity=0.97,
        delta_size_bytes=1290,
        transports=["tcp", "shm"],
    ),
)
"""A reply of each JSON route."""


class Described:
    """Collects a program's routes, then the schemas of the types they name."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._types: dict[Any, None] = {m.ErrorBody: None, WireArray: None}
        self._paths: dict[str, dict[str, Any]] = {}
        self._links: list[tuple[dict[str, Any], Any]] = []

    def json(self, path: str, reply: type[Any]) -> None:
        """A GET route that answers JSON, or text where the type is str."""
        if reply is str:
            content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
        else:
            body: dict[str, Any] = {"schema": self._schema(reply)}
            for example in EXAMPLES:
                if type(example) is reply:
                    body["example"] = msgspec.to_builtins(example)
            content = {"application/json": body}
        self._add("get", path, {}, content)

    def msgpack(self, method: str, path: str, request: type[Any], reply: Any, part: Any, envelope: bool) -> None:
        """A route whose reply, and whose body unless it is a GET, is msgpack. part: of a reply in frames, or None."""
        content = {}
        for kind, media_type in ((reply, MSGPACK), (part, FRAMES)):
            if kind is None:
                continue
            schema = self._schema(kind)
            if envelope:
                ok = {"type": "boolean", "const": True}
                schema = {"type": "object", "properties": {"ok": ok, "result": schema}, "required": ["ok", "result"]}
            content[media_type] = {"schema": schema}
        given: dict[str, Any]
        if method == "GET":
            given = {"parameters": self._parameters(path, request)}
        else:
            given = {"requestBody": {"required": True, "content": {MSGPACK: {"schema": self._schema(request)}}}}
        self._add(method.lower(), path, given, content)

    def document(self) -> dict[str, Any]:
        schemas, components = msgspec.json.schema_components(self._types, schema_hook=_array, ref_template=REF)
        by_type = dict(zip(self._types, schemas, strict=True))
        for place, kind in self._links:
            place.update(by_type[kind])
        return {
            "openapi": "3.1.0",
            "info": {"title": f"AstraFlow {self._title}", "version": "1"},
            "security": [{"token": []}],
            "paths": self._paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }

    def _add(self, method: str, path: str, given: dict[str, Any], content: dict[str, Any]) -> None:
        failed = MSGPACK if MSGPACK in content else "application/json"
        error = {"description": "the error", "content": {failed: {"schema": self._schema(m.ErrorBody)}}}
        responses = {"200": {"description": "the reply", "content": content}, "default": error}
        self._paths.setdefault(path, {})[method] = {**given, "responses": responses}

    def _parameters(self, path: str, request: type[Any]) -> list[dict[str, Any]]:
        inside = re.findall(r"{(\w+)}", path)
        parameters = []
        for field in msgspec.structs.fields(request):
            at = "path" if field.name in inside else "query"
            required = field.required or at == "path"
            schema = self._schema(field.type)
            parameters.append({"name": field.encode_name, "in": at, "required": required, "schema": schema})
        return parameters

    def _schema(self, kind: Any) -> dict[str, Any]:
        """A schema that is filled in when all types are known."""
        self._types[kind] = None
        place: dict[str, Any] = {}
        self._links.append((place, kind))
        return place


def reply_of(handler: Callable[..., Any]) -> Any:
    """What a handler says that it returns, streams apart; Any where it does not say."""
    whole = [kind for kind in _returned(handler) if get_origin(kind) is not AsyncIterator]
    return reduce(or_, whole) if whole else None


def part_of(handler: Callable[..., Any]) -> Any:
    """What the stream consists of that a handler may return; None where it returns none."""
    streams = [kind for kind in _returned(handler) if get_origin(kind) is AsyncIterator]
    return get_args(streams[0])[0] if streams else None


def _returned(handler: Callable[..., Any]) -> tuple[Any, ...]:
    function = handler.func if isinstance(handler, partial) else handler
    kind = get_type_hints(function).get("return", Any)
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _array(kind: type[Any]) -> dict[str, Any]:
    if kind is np.ndarray:
        return {"$ref": REF.format(name="WireArray")}
    raise NotImplementedError(kind)
