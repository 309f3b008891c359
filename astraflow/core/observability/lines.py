"""Logs of one JSON object a line that outlive whoever wrote them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 16


def append_to_lines(path: Path) -> BinaryIO:
    """Open a file of lines, of one writer, for appending; half a line, of a writer that was killed, is cut off.

    Otherwise the next line would be glued to it, and neither could be read.
    """
    file = path.open("a+b")
    end = whole = file.seek(0, os.SEEK_END)
    while whole:
        start = max(0, whole - BLOCK)
        file.seek(start)
        found = file.read(whole - start).rfind(b"\n") + 1
        whole = start + found
        if found:
            break
    if whole != end:
        file.truncate(whole)
    return file
