"""The tokenizer of the tiny presets: one token per printable ASCII character.

Characters keep a small model's arithmetic learnable (a digit is a token) and its vocabulary, so also the cost of its
output layer, at a hundred. The chat template adds one token before and one after each message.
"""

from __future__ import annotations

import json
import string

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from astraflow.core.text.tokenizer import Tokenizer

PAD, UNKNOWN, SYSTEM, USER, ASSISTANT, TOOL, END = SPECIAL_TOKENS = (
    "<pad>",
    "<unk>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
)
CHARACTERS = " \n" + string.digits + string.ascii_lowercase + string.ascii_uppercase + string.punctuation
"""Everything else is read as <unk>."""

TEMPLATE = """\
{%- if tools %}{{ '<|system|>' + (tools | tojson) + '<|end|>' }}{% endif %}
{%- for message in messages %}
{{- '<|' + message.role + '|>' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""


def tiny_tokenizer() -> Tokenizer:
    """Return the tokenizer; `save` writes it in the layout that transformers' PreTrainedTokenizerFast reads."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *CHARACTERS])}
    # BPE without merges splits into characters, and unlike a word-level model keeps every one of them, spaces too
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.decoder = decoders.Fuse()
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    return Tokenizer(
        {
            "tokenizer.json": backend.to_str().encode(),
            "tokenizer_config.json": json.dumps(config, indent=2).encode(),
            "chat_template.jinja": TEMPLATE.encode(),
        }
    )
