"""A dataset of sums."""

from typing import Any


def rows(size: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1), "task_id": f"sum-{i}"}
        for i in range(size)
    ]
