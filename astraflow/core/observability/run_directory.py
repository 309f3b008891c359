"""The run directory: everything a run leaves, in one layout that every program and tool shares.

config.yaml                 resolved configuration
token                       bearer token of the run, mode 0600
lock                        held by the launcher while the run lives
settings/<process>.json     what each process was given
endpoints/<process>.json    what each process announced after binding its socket: {name, url, pid, started, host, boot}
logs/<process>.log          its stderr and stdout
metrics.jsonl               one line a training step; where several models are trained, of the first one's
metrics-<model_id>.jsonl    of each further one's
spans.jsonl                 timed intervals
trajectories/               sampled trajectories
failures.json               why samples have no reward, by kind
ledger/                     what became of every prompt occurrence; Dataflow continues from it
recover/<model_id>/         what a trainer continues from
checkpoints/step_%06d/      Hugging Face layout; checkpoints-<model_id>/ of each further model
summary.json                the run in a few numbers
report.html                 the run drawn, in one file that needs no network
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from pathlib import Path

import msgspec

from astraflow.errors import ConfigError, DataError

TOKEN_VARIABLE = "ASTRAFLOW_TOKEN"
"""Where set, it is the token of every run: programs on several machines share it so."""

_FOLDERS = ("settings", "endpoints", "logs", "trajectories", "checkpoints")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_MARKS = ("config.yaml", "metrics.jsonl", "ledger", "versions")
"""One of them is in every run directory."""


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process can be reached; written only after its socket is bound, so that the port is really its own."""

    name: str
    url: str
    pid: int
    """Tells a fresh announcement from one that an earlier process left behind."""
    started: int | None = None
    """When it started, as `process_start` tells it: a pid is given out again, a pid with a start time is not."""
    host: str = ""
    """Name of its machine: the pid means something only there."""
    boot: str = ""
    """Which start of the machine `started` counts from, as `boot_id` tells it; empty where it is not known."""

    @property
    def here(self) -> bool:
        """Is it a process of this machine, since its last start?"""
        return self.host in ("", socket.gethostname()) and self.boot in ("", boot_id())

    @property
    def alive(self) -> bool:
        """Does the process that announced it live, on this machine? Whoever has its pid by now is somebody else."""
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return self.here and process_start(self.pid) == self.started


class RunDirectory:
    """Paths of a run. Constructing it creates the folders, except for readers; ConfigError where that is impossible."""

    def __init__(self, path: str | Path, create: bool = True) -> None:
        self.root = Path(path).expanduser().absolute()
        self._lock: int | None = None
        try:
            for folder in _FOLDERS if create else ():
                (self.root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run directory {self.root}: {error.strerror}") from error

    @classmethod
    def existing(cls, path: str | Path) -> RunDirectory:
        """The directory of a run that is or was; ConfigError where `path` is none."""
        found = cls(path, create=False)
        if not any(os.path.exists(found.root / mark) for mark in _MARKS):
            raise ConfigError(f"{path} is not a run directory: it holds neither config.yaml nor metrics.jsonl")
        return found

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    def metrics_of(self, model_id: str | None) -> Path:
        """Of a further model, where several are trained; None: of the first one, `metrics`."""
        return self.metrics if model_id is None else self.root / f"metrics-{_checked(model_id)}.jsonl"

    @property
    def spans(self) -> Path:
        return self.root / "spans.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def summary_of(self, model_id: str) -> Path:
        """Of a further model, where several are trained."""
        return self.root / f"summary-{_checked(model_id)}.json"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories"

    def kept_trajectories(self, step: int, model_id: str | None = None) -> Path:
        """What Dataflow keeps of the trajectories of `step`; model_id: of a further model."""
        whose = "" if model_id is None else f"_{_checked(model_id)}"
        return self.trajectories / f"step_{step:06d}{whose}.jsonl"

    def trainer_logprobs(self, step: int, model_id: str) -> Path:
        """The trainer's logprobs of the trained ones among them."""
        return self.trajectories / f"logprobs_{step:06d}_{_checked(model_id)}.jsonl"

    @property
    def failures(self) -> Path:
        """Why samples have no reward."""
        return self.root / "failures.json"

    @property
    def evaluations(self) -> Path:
        """Samples of evaluation rounds, a file a version."""
        return self.root / "evaluations"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger"

    def recover(self, model_id: str) -> Path:
        """Where a model's trainer keeps what it continues from."""
        return self.root / "recover" / _checked(model_id)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int, model_id: str | None = None) -> Path:
        """The folder of the checkpoint written after `step`; model_id: of a further model."""
        folder = self.checkpoints if model_id is None else self.root / f"checkpoints-{_checked(model_id)}"
        return folder / f"step_{step:06d}"

    def settings(self, name: str) -> Path:
        return self.root / "settings" / f"{_checked(name)}.json"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{_checked(name)}.log"

    def token(self) -> str:
        """Return the run's bearer token: ASTRAFLOW_TOKEN where set, else the run's own, created on first use.

        Processes may ask at once: the file appears complete, and the first one wins.
        """
        if given := os.environ.get(TOKEN_VARIABLE):
            return given
        path = self.root / "token"
        if not path.exists():
            draft = path.with_name(f".token.{os.getpid()}.{secrets.token_hex(4)}")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32))
            try:
                os.link(draft, path)
            except FileExistsError:
                pass  # another process was first: its token is the run's
            finally:
                draft.unlink()
        return path.read_text("ascii").strip()

    def announce(self, name: str, url: str) -> None:
        """Say where this process listens. Call it after the socket is bound; readers never see half a file."""
        path = self._announcement(name)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        pid, host = os.getpid(), socket.gethostname()
        announcement = Announcement(name=name, url=url, pid=pid, started=process_start(pid), host=host, boot=boot_id())
        try:
            draft.write_bytes(msgspec.json.encode(announcement))
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)  # of a full disk

    def withdraw(self, name: str) -> None:
        """Forget what `name` announced."""
        self._announcement(name).unlink(missing_ok=True)

    def withdraw_all(self) -> None:
        """Forget what an earlier life of the run announced and did not live to withdraw."""
        for path in (self.root / "endpoints").glob("*.json"):
            path.unlink(missing_ok=True)

    def endpoint(self, name: str, pid: int | None = None) -> Announcement | None:
        """Return what `name` announced, or None while it has not; with `pid`, only that process's own announcement."""
        try:
            announced = msgspec.json.decode(self._announcement(name).read_bytes(), type=Announcement)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as error:
            raise DataError(f"{self._announcement(name)}: {error}") from error
        return announced if pid is None or announced.pid == pid else None

    def hold(self) -> None:
        """Claim the directory for a run until this process ends; ConfigError where another run lives in it."""
        try:
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"run directory {self.root}: its file lock: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(f"run directory {self.root} is in use by another run") from error
        self._lock = descriptor

    @property
    def held(self) -> bool:
        """Does a run live in it?"""
        try:
            descriptor = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def release(self) -> None:
        """Give up the claim of `hold`."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _announcement(self, name: str) -> Path:
        return self.root / "endpoints" / f"{_checked(name)}.json"


def boot_id() -> str:
    """Name of the machine's last start; empty where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Clock ticks from the machine's start to the process's; None where there is no /proc, or no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # field 22; the second one, the program's name in brackets, may hold spaces and brackets itself
    return int(text.rpartition(")")[2].split()[19])


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(f"'{name}' cannot name a process: at most 200 letters, digits, '_', '.' and '-'")
    return name
