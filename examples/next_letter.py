"""A dataset for the trainer and the RaaS of one's own: which letter comes after this one?"""

LETTERS = "abcdefgh"


def questions() -> list[dict]:
    """One row a letter; after the last comes the first."""
    return [
        {"messages": [{"role": "user", "content": one}], "answer": other, "task_id": one}
        for one, other in zip(LETTERS, LETTERS[1:] + LETTERS[0], strict=True)
    ]
