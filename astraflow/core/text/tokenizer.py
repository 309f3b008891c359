"""Text ↔ token ids from the files of a Hugging Face directory, without transformers or torch.

A tokenizer is read once and its files are kept as they are, so that saving it writes the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from astraflow.core.text.chat_template import ChatTemplate
from astraflow.errors import ConfigError, DataError, boundary

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
"""What belongs to a tokenizer in a Hugging Face directory. `tokenizer.json` is required, the others are optional."""

Message = Mapping[str, Any]
"""{role, content, …} as chat templates read it."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face directory; ConfigError where `tokenizer.json` is missing or unreadable."""
    directory = Path(path)
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError(f"{directory} holds no tokenizer.json")
    return Tokenizer({name: (directory / name).read_bytes() for name in FILES if (directory / name).is_file()})


class Tokenizer:
    """A tokenizer, its special tokens and its chat template.

    `files` maps the names of FILES to their bytes. Ids are plain lists of int.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)
        with boundary(ConfigError, "tokenizer.json"):
            self._backend = tokenizers.Tokenizer.from_buffer(self._files["tokenizer.json"])
        # padding or truncation left on in the file would change ids behind the caller's back
        self._backend.no_padding()
        self._backend.no_truncation()
        self._config = self._json("tokenizer_config.json")
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        """Number of ids, added tokens included; a model's embedding may have more rows."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`; special tokens that are written out in it become their ids."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids and, for each, the characters [start, end) of `text` that it covers."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids` (a list or an integer array)."""
        text: str = self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        return text

    def token_to_id(self, token: str) -> int | None:
        """Return the id of one token as it stands in the vocabulary, None where there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation: the tokenizer's own, then those of generation_config.json; may be empty."""
        own = self._special_id("eos_token")
        listed = self._json("generation_config.json").get("eos_token_id")
        ids = [own, *(listed if isinstance(listed, list) else [listed])]
        return tuple(dict.fromkeys(int(i) for i in ids if i is not None))

    @cached_property
    def pad_token_id(self) -> int:
        """The padding id; without one, the first end token (masks never look at it, so any id does)."""
        own = self._special_id("pad_token")
        return own if own is not None else (self.eos_token_ids or (0,))[0]

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template; ConfigError where the directory has none."""
        with boundary(ConfigError, "chat_template.jinja"):
            source = self._files["chat_template.jinja"].decode() if "chat_template.jinja" in self._files else None
        listed = source or self._config.get("chat_template")
        if isinstance(listed, list):
            listed = {entry["name"]: entry["template"] for entry in listed}.get("default")
        if not listed:
            raise ConfigError("the tokenizer has no chat template (chat_template.jinja or tokenizer_config.json)")
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return ChatTemplate(listed, {name: token for name in names if (token := self._special(name)) is not None})

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Return the text of a conversation; DataError where the template refuses it."""
        return self.template.render(messages, add_generation_prompt, tools, kwargs)

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **kwargs: Any) -> list[int]:
        """Return the ids of a conversation. Templates write special tokens themselves, so none are added.

        DataError for no messages: a model would continue nothing but the template's own words.
        """
        if not messages:
            raise DataError("a conversation has no messages, expected at least one")
        return self.encode(self.apply_chat_template(messages, add_generation_prompt, **kwargs))

    @property
    def files(self) -> dict[str, bytes]:
        """The tokenizer's files by name."""
        return dict(self._files)

    def save(self, directory: str | Path) -> None:
        """Write the tokenizer's files, byte for byte as they were read; those of another tokenizer go."""
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        for name in set(FILES) - self._files.keys():
            (target / name).unlink(missing_ok=True)
        for name, content in self._files.items():
            (target / name).write_bytes(content)

    def _special(self, name: str) -> str | None:
        listed = self._config.get(name)
        if listed is None:
            listed = self._json("special_tokens_map.json").get(name)
        text = listed.get("content") if isinstance(listed, dict) else listed
        return str(text) if text is not None else None

    def _special_id(self, name: str) -> int | None:
        token = self._special(name)
        if token is None:
            return None
        found = self.token_to_id(token)
        if found is None:
            raise DataError(f"{name} {token!r} is not in the tokenizer's vocabulary")
        return found

    def _json(self, name: str) -> dict[str, Any]:
        if name not in self._files:
            return {}
        with boundary(ConfigError, name):
            loaded: dict[str, Any] = json.loads(self._files[name])
        return loaded
