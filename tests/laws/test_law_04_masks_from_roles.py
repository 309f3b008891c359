"""LAW 4. Masks come from lengths and roles, never from token values: pad = eos changes nothing."""

from __future__ import annotations

import json

from astraflow.core.text import Tokenizer, encode_with_spans, tiny_tokenizer
from astraflow.core.text.tiny import END, PAD

CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": f"what is {END}{PAD}{END}?"},
    {"role": "assistant", "content": f"an end{PAD}token"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
]


def with_pad(pad: str) -> Tokenizer:
    """The tiny tokenizer with another padding token."""
    files = {
        name: content
        for name, content in tiny_tokenizer().files.items()
        if name in {"tokenizer.json", "chat_template.jinja", "tokenizer_config.json"}
    }
    config = json.loads(files["tokenizer_config.json"]) | {"pad_token": pad}
    return Tokenizer({**files, "tokenizer_config.json": json.dumps(config).encode()})


def test_pad_equal_to_the_end_token_changes_nothing() -> None:
    assert with_pad(END).pad_token_id in with_pad(END).eos_token_ids
    ids, mask = encode_with_spans(with_pad(PAD), CONVERSATION)
    other_ids, other_mask = encode_with_spans(with_pad(END), CONVERSATION)
    assert ids.tolist() == other_ids.tolist()
    assert mask.tolist() == other_mask.tolist()


def test_exactly_what_the_assistant_wrote_is_masked_in_with_its_end_token() -> None:
    tokenizer = tiny_tokenizer()
    ids, mask = encode_with_spans(tokenizer, CONVERSATION)
    assert tokenizer.decode(ids[mask == 1], skip_special_tokens=False) == f"an end{PAD}token{END}yes{END}"
