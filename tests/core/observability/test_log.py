import logging
import os
import subprocess
import sys
from pathlib import Path

from astraflow.core.observability.log import FORMAT, LineFormatter, message


def record(message: str, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("astraflow.x", logging.ERROR, __file__, 1, message, (), exc_info)  # type: ignore[arg-type]


def test_a_record_is_one_line() -> None:
    line = LineFormatter(FORMAT).format(record("first\n\nsecond"))
    assert line.endswith("ERROR   astraflow.x: first | second")
    assert "\n" not in line


def test_a_traceback_joins_its_record() -> None:
    try:
        raise ValueError("what went wrong")
    except ValueError:
        line = LineFormatter(FORMAT).format(record("failed", sys.exc_info()))
    assert "\n" not in line
    assert line.endswith("ValueError: what went wrong")


def test_where_the_log_goes_is_named(tmp_path: Path) -> None:
    code = "from astraflow.core.observability.log import destination; print(destination())"
    for stderr, expected in ((tmp_path / "a.log", str(tmp_path / "a.log")), (Path(os.devnull), "stderr")):
        with stderr.open("w") as file:
            done = subprocess.run(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=file, text=True, check=True
            )
        assert done.stdout.strip() == expected


def test_a_message_is_found_again_in_its_line() -> None:
    assert message(LineFormatter(FORMAT).format(record("step 3: loss 0.5"))) == "step 3: loss 0.5"
    assert message("Traceback (most recent call last):") == "Traceback (most recent call last):"
