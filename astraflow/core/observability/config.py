"""Keys of the metric sinks (`stats_logger`)."""

from __future__ import annotations

from typing import Literal

from astraflow.core.config import Section

DISABLED = "disabled"


class JsonlConfig(Section):
    """metrics.jsonl in the run directory: one line a step."""

    enabled: bool = True
    """Whether it takes the steps; the report and the summary need it."""


class ConsoleConfig(Section):
    """One plain line a step in the train worker's log."""

    enabled: bool = True
    """Whether it takes the steps."""


class PrometheusConfig(Section):
    """The newest step in Prometheus' text format, for a node exporter's textfile collector."""

    enabled: bool = False
    """Whether it takes the steps."""
    path: str | None = None
    """The file, replaced at each step; None: metrics-<model_id>.prom in the run directory."""


class TensorBoardConfig(Section):
    """Event files for TensorBoard."""

    path: str | None = None
    """Their folder; None: no TensorBoard."""


class WandbConfig(Section):
    """Weights & Biases."""

    mode: Literal["online", "offline", "disabled"] = "disabled"
    """offline keeps the run in the run directory's wandb/, to be sent later by `wandb sync`."""
    project: str | None = None
    """None: the experiment's name."""
    name: str | None = None
    """None: the trial's name and the model's."""
    entity: str | None = None
    """User or team; None: the account's default."""
    group: str | None = None
    """None: the experiment's and the trial's name: a run's models are shown together."""
    tags: tuple[str, ...] = ()
    """Words to find the run by."""
    id_suffix: str | None = "train"
    """End of the run's id, which continues the same run after a restart."""


class SwanLabConfig(Section):
    """SwanLab."""

    mode: Literal["cloud", "local", "offline", "disabled"] = "disabled"
    """local shows the run by `swanlab watch`; offline keeps it to be sent later by `swanlab sync`."""
    project: str | None = None
    """None: the experiment's name."""
    name: str | None = None
    """None: the trial's name and the model's."""
    group: str | None = None
    """None: the experiment's and the trial's name."""
    tags: tuple[str, ...] = ()
    """Words to find the run by."""
    logdir: str | None = None
    """Where it keeps the run; None: swanlab/ in the run directory."""


class TrackioConfig(Section):
    """trackio."""

    mode: Literal["online", "local", "disabled"] = "disabled"
    """local keeps the run on this machine, shown by `trackio show`; online sends it to a Space."""
    project: str | None = None
    """None: the experiment's name."""
    name: str | None = None
    """None: the trial's name and the model's."""
    group: str | None = None
    """None: the experiment's and the trial's name."""
    space_id: str | None = None
    """The Space of mode online, as user/name; None: one of the project's name."""


class StatsLoggerConfig(Section):
    """Where a step's statistics go."""

    jsonl: JsonlConfig = JsonlConfig()
    console: ConsoleConfig = ConsoleConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    wandb: WandbConfig = WandbConfig()
    swanlab: SwanLabConfig = SwanLabConfig()
    trackio: TrackioConfig = TrackioConfig()

    @property
    def enabled(self) -> dict[str, bool]:
        """Sink → does it take the steps?"""
        return {
            "jsonl": self.jsonl.enabled,
            "console": self.console.enabled,
            "prometheus": self.prometheus.enabled,
            "tensorboard": self.tensorboard.path is not None,
            "wandb": self.wandb.mode != DISABLED,
            "swanlab": self.swanlab.mode != DISABLED,
            "trackio": self.trackio.mode != DISABLED,
        }

    @property
    def packages(self) -> dict[str, str]:
        """Package → the extra of AstraFlow that brings it, for the sinks that are enabled."""
        needed = {name: name for name in ("tensorboard", "wandb", "swanlab", "trackio") if self.enabled[name]}
        if self.swanlab.mode == "local":
            needed["swanboard"] = "swanlab"
        return needed

    @property
    def unused(self) -> dict[str, str]:
        """Key → why it has no effect."""
        out: dict[str, str] = {}
        for name, switch in {"wandb": "mode", "swanlab": "mode", "trackio": "mode", "prometheus": "enabled"}.items():
            if not self.enabled[name]:
                section = getattr(self, name)
                value = str(getattr(section, switch)).lower()
                keys = [key for key in type(section).model_fields if key != switch]
                out |= {f"{name}.{key}": f"stats_logger.{name}.{switch} is {value}" for key in keys}
        if self.trackio.mode == "local":
            out["trackio.space_id"] = "stats_logger.trackio.mode is local"
        return out
