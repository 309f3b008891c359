"""/openapi.json: each program's routes, from its own message types; examples and real replies are what it says."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

from astraflow.core.protocol import Endpoint, StatusEndpoint, build_app, in_process
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.openapi import EXAMPLES, MSGPACK

HEADERS = {"Authorization": "Bearer t"}


async def cancel(request: m.CancelRequest) -> list[m.PulledItem]:
    return []


async def batch(request: m.BatchRequest) -> m.BatchReply:
    raise NotImplementedError


async def odd(request: Any) -> Any:
    return None


async def document() -> dict[str, Any]:
    app = build_app(
        "test",
        "t",
        [
            Endpoint("POST", "/cancel", m.CancelRequest, cancel, envelope=True),
            Endpoint("POST", "/odd", m.Empty, odd),
            Endpoint("GET", "/batch", m.BatchRequest, batch),
            Endpoint("GET", "/manifest/{version}", m.ManifestRequest, odd),
            StatusEndpoint("/availability", dict, m.Availability),
            StatusEndpoint("/metrics", lambda: "a 1\n", str),
        ],
    )
    async with httpx.AsyncClient(transport=in_process(app), base_url="http://x", headers=HEADERS) as client:
        return dict((await client.get("/openapi.json")).raise_for_status().json())


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from ([node["$ref"]] if isinstance(node.get("$ref"), str) else [])
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def test_a_program_described() -> None:
    said = asyncio.run(document())
    assert said["openapi"] == "3.1.0"
    assert said["security"] == [{"token": []}]
    schemas = said["components"]["schemas"]
    assert {ref.rpartition("/")[2] for ref in refs(said)} <= schemas.keys()
    post = said["paths"]["/cancel"]["post"]
    assert post["requestBody"]["content"][MSGPACK]["schema"] == {"$ref": "#/components/schemas/CancelRequest"}
    result = post["responses"]["200"]["content"][MSGPACK]["schema"]["properties"]["result"]
    assert result == {"type": "array", "items": {"$ref": "#/components/schemas/PulledItem"}}
    assert schemas["Turn"]["properties"]["ids"] == {"$ref": "#/components/schemas/WireArray"}
    assert set(schemas["WireArray"]["properties"]) == {"dtype", "shape", "bytes"}
    parameters = said["paths"]["/batch"]["get"]["parameters"]
    assert [(p["name"], p["in"], p["required"]) for p in parameters] == [
        ("model_id", "query", False),
        ("version", "query", False),
        ("timeout", "query", False),
    ]
    (version,) = said["paths"]["/manifest/{version}"]["get"]["parameters"]
    assert (version["in"], version["required"], version["schema"]["type"]) == ("path", True, "integer")
    assert said["paths"]["/odd"]["post"]["responses"]["200"]["content"][MSGPACK]["schema"] == {}
    shown = said["paths"]["/availability"]["get"]["responses"]["200"]["content"]["application/json"]
    assert msgspec.convert(shown["example"], m.Availability, strict=True) in EXAMPLES
    assert said["paths"]["/metrics"]["get"]["responses"]["200"]["content"] == {
        "text/plain": {"schema": {"type": "string"}}
    }
    for path in said["paths"].values():
        for route in path.values():
            (error,) = route["responses"]["default"]["content"].values()
            assert error["schema"] == {"$ref": "#/components/schemas/ErrorBody"}


def test_examples_are_what_they_are_examples_of() -> None:
    for example in EXAMPLES:
        assert msgspec.json.decode(msgspec.json.encode(example), type=type(example)) == example
    assert len({type(example) for example in EXAMPLES}) == len(EXAMPLES)
