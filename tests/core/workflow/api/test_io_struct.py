from astraflow.core import data
from astraflow.core.workflow.api import io_struct


def test_the_public_module_shows_the_records_themselves() -> None:
    assert io_struct.ModelRequest is data.ModelRequest
    assert all(hasattr(io_struct, name) for name in io_struct.__all__)
