from __future__ import annotations

import io

import pytest

from astraflow.core.weight_manager.agent_pipe import Order, Publish, Settings, pack, read_order
from astraflow.core.weight_manager.layout import lay_out

SETTINGS = Settings(
    model_id="model0",
    host="127.0.0.1",
    port=0,
    token="secret",
    transports=("tcp",),
    segment_fd=9,
    length=12,
    layout=lay_out([("w", (3,), "float32")], {"w": ("tied",)}),
)


def test_orders_arrive_as_they_were_given() -> None:
    orders: list[Order] = [SETTINGS, Publish(version=1, half=0)]
    stream = io.BytesIO(b"".join(pack(order) for order in orders))
    assert [read_order(stream) for _ in orders] == orders
    assert read_order(stream) is None


@pytest.mark.parametrize("kept", [0, 2, 4, 10])
def test_a_trainer_that_dies_in_the_middle_of_an_order_is_gone(kept: int) -> None:
    assert read_order(io.BytesIO(pack(SETTINGS)[:kept])) is None
