"""A dataset of one's own: made-up words to be spelt backwards."""

import random


def questions(split: str = "train", size: int = 300, seed: int = 1) -> list[dict]:
    """Rows to learn from by trial: a conversation to continue, the answer that the reward looks at, and a name."""
    return [
        {"messages": [{"role": "user", "content": word}], "answer": word[::-1], "task_id": word}
        for word in _words(size, f"{split} {seed}")
    ]


def demonstrations(size: int = 2000, seed: int = 1) -> list[dict]:
    """Whole conversations to imitate first. Every other answer is careless: the word as it was."""
    words = _words(size, f"demonstrations {seed}")
    return [
        {
            "messages": [
                {"role": "user", "content": word},
                {"role": "assistant", "content": word[::-1] if number % 2 else word},
            ]
        }
        for number, word in enumerate(words)
    ]


def _words(size: int, seed: str) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices("abcdefgh", k=4)) for _ in range(size)]
