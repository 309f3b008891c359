import pytest

from astraflow.core.protocol.messages import EngineLoad, Task
from astraflow.raas.capacity import availability
from astraflow.raas.state import TaskTable

LOAD = EngineLoad(running=1, queued=2, tokens_generated=3)


@pytest.mark.parametrize(
    ("submitted", "started", "ready", "available"),
    [(0, 0, True, 4), (3, 3, True, 1), (3, 1, True, 1), (6, 4, True, 0), (0, 0, False, 0)],
)
def test_running_and_queued_groups_take_places(submitted: int, started: int, ready: bool, available: int) -> None:
    table = TaskTable()
    table.submit([Task(task_id=str(n), group_id=n, data={}) for n in range(submitted)], "default", "train")
    table.start(started)
    answer = availability(table, 4, ready, {"m": LOAD})
    assert answer.engines == {"m": LOAD}
    assert answer.available == available
    assert (answer.inflight, answer.queued) == (started, submitted - started)
