"""What a hook keeps of a value: secrets masked, long texts cut with the digest of the whole. Standard library only.

Invariant: what `kept` returns is strict JSON of bounded size, whatever comes in.
"""

from __future__ import annotations

import json
import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # a hook does without the 2 ms that importing typing takes
    from typing import Any

MAX_TEXT = 4096
"""Characters kept of one text."""
MAX_FIELD = 16_384
"""Characters of JSON kept of one field of an event; three such fields keep a line well below 64 KiB."""
MAX_ITEMS = 64
MAX_DEPTH = 8
_MARGIN = 1024
"""Looked at beyond the cut, so that a secret across it is seen whole."""

MASK = "[redacted]"

_NAMES = (
    r"(?:api[_-]?key|access[_-]?key|secret(?:[_-]?key)?|(?:auth|access|refresh|bearer)?[_-]?token"
    r"|passw(?:or)?d|passphrase|authorization|credential|private[_-]?key)"
)
_SECRET = re.compile(
    r"(?P<pem>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,8192}?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z))"
    r"|(?P<shape>\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_[A-Za-z0-9_]{16,}"
    r"|\bglpat-[A-Za-z0-9_-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)"
    r"|(?P<bearer>\b[Bb]earer\s{1,4})[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<url>://[^\s/:@]{0,64}:)[^\s/@]{1,256}(?=@)"
    rf"|(?P<flag>(?i:--?{_NAMES})(?:=|\s{{1,4}}))[^\s\"';&|]{{4,}}"
    rf"|(?P<name>(?i:{_NAMES})[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?(?:[Bb]earer\s{{1,4}}|[Bb]asic\s{{1,4}})?)[^\s\"',;&(){{}}\[\]<>]{{6,}}",
    re.DOTALL,
)
_SECRET_KEY = re.compile(rf"(?i)(?:.*[_-])?{_NAMES}\Z")


def masked(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced by a mask; names before values stay."""
    return _SECRET.sub(
        lambda match: next((p for p in match.group("bearer", "url", "flag", "name") if p), "") + MASK, text
    )


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` masked, cut to `limit` characters; a cut text ends with its length and SHA-256.

    Half surrogate pairs, which strict readers of JSON refuse, are written out as escapes.
    """
    window = text[: limit + _MARGIN]
    clean = masked(window.encode("utf-8", "backslashreplace").decode())
    if len(text) <= limit:
        return clean
    if len(window) < len(text):  # the window's own end may have cut a secret
        clean = clean[:-_MARGIN]
    return f"{clean[:limit]}[cut: {len(text)} characters, sha256 {sha256(text)}]"


def sha256(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal digits."""
    import hashlib  # loads OpenSSL: 5 ms that a hook spends only where something is cut

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def kept(value: Any) -> Any:
    """Return the part of a JSON value that an event keeps (at most MAX_FIELD characters of JSON)."""
    clean = _Cleaner().clean(value, 0)
    encoded = json.dumps(clean)
    if len(encoded) <= MAX_FIELD:
        return clean
    head = shortened(encoded[:MAX_TEXT])
    return {"cut": True, "characters": len(encoded), "sha256": sha256(encoded), "head": head}


class _Cleaner:
    """Cleans one field. Looking for secrets takes time: it ends soon after the field is too long to be kept whole."""

    def __init__(self) -> None:
        self._left = 2 * MAX_FIELD

    def clean(self, value: Any, depth: int) -> Any:
        if self._left <= 0:
            return "[cut]"
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            return value if abs(value) < 2**63 else str(value)
        if depth >= MAX_DEPTH:
            return "[cut: nested too deep]"
        if isinstance(value, dict):
            items = list(value.items())
            clean = {shortened(str(key), 200): self._member(key, item, depth) for key, item in items[:MAX_ITEMS]}
            if len(items) > MAX_ITEMS:
                clean["[cut]"] = f"{len(items) - MAX_ITEMS} more keys"
            return clean
        if isinstance(value, list | tuple):
            rest = [f"[cut: {len(value) - MAX_ITEMS} more items]"] if len(value) > MAX_ITEMS else []
            return [self.clean(item, depth + 1) for item in value[:MAX_ITEMS]] + rest
        return self._text(str(value))

    def _text(self, text: str) -> str:
        self._left -= min(len(text), MAX_TEXT) + 8
        return shortened(text)

    def _member(self, key: Any, item: Any, depth: int) -> Any:
        if isinstance(item, str) and item and isinstance(key, str) and _SECRET_KEY.match(key[:200]):
            return MASK
        self._left -= 8
        return self.clean(item, depth + 1)
