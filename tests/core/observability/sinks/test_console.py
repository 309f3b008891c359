import logging

import pytest

from astraflow.core.observability.sinks.base import Record
from astraflow.core.observability.sinks.console import ConsoleSink


def test_a_step_is_one_record_with_names_in_order(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "astraflow.stats"):
        ConsoleSink().write(Record(step=3, time=0.0, stats={"b": 0.123456, "a": 2.0}))
    assert caplog.messages == ["step 3: a 2, b 0.1235"]
