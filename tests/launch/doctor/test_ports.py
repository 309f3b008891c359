import socket
from collections.abc import Callable, Iterator

import pytest

from astraflow.launch.doctor import Finding, Severity


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("program", ["dataflow", "raas"])
def test_a_port_that_is_taken(one: Callable[..., Finding], taken: int, program: str) -> None:
    found = one("ports", f"+{program}.port={taken}")
    assert (found.severity, found.key) == (Severity.ERROR, f"{program}.port")
    assert f"127.0.0.1:{taken} cannot be had: Address already in use" in found.message


def test_a_host_that_is_not_this_machine(one: Callable[..., Finding]) -> None:
    assert "192.0.2.1:8000 cannot be had" in one("ports", "+dataflow.host=192.0.2.1", "+dataflow.port=8000").message


def test_two_programs_with_one_port(findings: Callable[..., list[Finding]], taken: int) -> None:
    found = findings(f"+dataflow.port={taken}", f"+raas.port={taken}")
    assert "both want port" in found[0].message
