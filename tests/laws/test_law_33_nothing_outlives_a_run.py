"""LAW 33: ports are bound, then announced: nothing picks a port and binds it later. Children die with their parent;
nothing outlives a run. (verl 6677, AReaL 622)
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

PARENT = """
import sys, threading
from pathlib import Path
from astraflow.core.observability.lifeline import spawn
spawn([sys.executable, "-c", sys.argv[1], sys.argv[2]], Path(sys.argv[3]))
threading.Event().wait()
"""

CHILD = """
import sys, threading
from astraflow.core.observability.lifeline import watch_parent
{before}
watch_parent(grace=0.2)
pipe = open(sys.argv[1], "w")
pipe.write("alive")
pipe.flush()
threading.Event().wait()
"""

IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def child_ends_with_its_killed_parent(tmp_path: Path, child: str) -> None:
    """The child holds a pipe open; its end is the pipe's end-of-file."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, child, str(fifo), str(tmp_path / "child.log")])
    with fifo.open() as pipe:
        assert pipe.read(5) == "alive", (tmp_path / "child.log").read_text()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert pipe.read() == ""


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    child_ends_with_its_killed_parent(tmp_path, CHILD.format(before=""))


def test_a_child_that_ignores_sigterm_ends_as_well(tmp_path: Path) -> None:
    child_ends_with_its_killed_parent(tmp_path, CHILD.format(before=IGNORES_SIGTERM))
