"""A reward of one's own: the share of letters that are in their place."""


def letters_in_place(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], answer: str, **row: object
) -> float:
    """1 for the answer itself. Further keys of the row arrive as keywords, as `answer` does."""
    if len(completions) > len(answer):
        return 0.0
    return sum(one == other for one, other in zip(completions, answer, strict=False)) / len(answer)
