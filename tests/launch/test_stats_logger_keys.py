"""Keys of sinks in a whole configuration: without effect they are refused, and so is a sink without its package."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.launch import check
from astraflow.launch.check import load_config

SECTION = "trainer_base.stats_logger"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("wandb.project=p", r"stats_logger\.wandb\.project: has no effect: .*mode is disabled"),
        ("prometheus.path=/x", r"prometheus\.path: has no effect: .*enabled is false"),
        ("wandb.mode=on", r"wandb\.mode: Input should be"),
        ("wandb.id_sufix=x", "did you mean 'id_suffix'"),
    ],
)
def test_keys_without_effect_are_refused(run_yaml: Path, override: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_config([run_yaml], [f"{SECTION}.{override}"])


def test_recipes_may_switch_a_sink_off(run_yaml: Path) -> None:
    config = load_config([run_yaml], [f"{SECTION}.wandb.mode=disabled", f"{SECTION}.prometheus.enabled=true"])
    logged = config.values()["trainer_model0"]["stats_logger"]
    assert logged["wandb"] == {"mode": "disabled"}
    assert logged["prometheus"] == {"enabled": True, "path": None}


def test_a_missing_package_is_named_with_its_extra(run_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "missing_packages", lambda config: {"wandb": "needs the package wandb"})
    with pytest.raises(ConfigError, match=r"stats_logger\.wandb: needs the package wandb"):
        load_config([run_yaml], [f"{SECTION}.wandb.mode=offline"])


def test_the_installed_packages_decide(run_yaml: Path) -> None:
    overrides = [f"{SECTION}.trackio.mode=local"]
    if find_spec("trackio"):
        assert load_config([run_yaml], overrides).trainers["model0"].stats_logger.trackio.mode == "local"
    else:
        with pytest.raises(ConfigError, match=r"pip install 'astraflow\[trackio\]'"):
            load_config([run_yaml], overrides)
