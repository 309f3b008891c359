"""How programs talk: message types, the HTTP machinery of their servers, and typed clients."""

from astraflow.core.protocol.clients import DataflowClient, RaaSClient, SenderClient
from astraflow.core.protocol.http import (
    SCHEMA,
    Endpoint,
    Peer,
    StatusEndpoint,
    Transport,
    build_app,
    in_process,
)
from astraflow.core.protocol.server import Server

__all__ = [
    "SCHEMA",
    "DataflowClient",
    "Endpoint",
    "Peer",
    "RaaSClient",
    "SenderClient",
    "Server",
    "StatusEndpoint",
    "Transport",
    "build_app",
    "in_process",
]
