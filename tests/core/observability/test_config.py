from astraflow.core.observability.config import PrometheusConfig, StatsLoggerConfig, TrackioConfig, WandbConfig


def test_only_files_of_the_run_are_on_by_default() -> None:
    config = StatsLoggerConfig()
    assert [name for name, enabled in config.enabled.items() if enabled] == ["jsonl", "console"]
    assert config.packages == {}


def test_keys_of_a_sink_that_is_off_have_no_effect() -> None:
    unused = StatsLoggerConfig().unused
    assert unused["wandb.project"] == "stats_logger.wandb.mode is disabled"
    assert unused["prometheus.path"] == "stats_logger.prometheus.enabled is false"
    assert "wandb.mode" not in unused
    assert "tensorboard.path" not in unused


def test_keys_of_a_sink_that_is_on_have_one() -> None:
    config = StatsLoggerConfig(
        wandb=WandbConfig(mode="offline"),
        trackio=TrackioConfig(mode="local"),
        prometheus=PrometheusConfig(enabled=True),
    )
    assert not any(key.startswith(("wandb", "prometheus")) for key in config.unused)
    assert config.unused["trackio.space_id"] == "stats_logger.trackio.mode is local"
    assert "trackio.name" not in config.unused
