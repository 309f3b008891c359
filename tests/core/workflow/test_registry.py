import pytest

from astraflow.core.workflow.registry import (
    REWARD_REGISTRY,
    WORKFLOW_REGISTRY,
    register_reward,
    register_workflow,
)
from astraflow.errors import ConfigError, UnknownNameError


def test_the_built_ins_are_known_without_importing_them() -> None:
    assert "rlvr" in WORKFLOW_REGISTRY.names()
    assert REWARD_REGISTRY.target("math_verify") == ("astraflow.core.workflow.reward.math_verify:math_verify_reward")
    assert WORKFLOW_REGISTRY.resolve("rlvr").__name__ == "RLVRWorkflow"
    with pytest.raises(UnknownNameError, match="did you mean 'rlvr'"):
        WORKFLOW_REGISTRY.check("rlvrr")


def test_what_a_process_registers_is_found_by_name() -> None:
    @register_reward("test_registry_reward")
    def reward(*args: object) -> float:
        return 1.0

    @register_workflow("test_registry_workflow")
    class Workflow: ...

    assert REWARD_REGISTRY.resolve("test_registry_reward") is reward
    assert WORKFLOW_REGISTRY.resolve("test_registry_workflow") is Workflow
    with pytest.raises(ConfigError, match="already registered"):
        register_reward("test_registry_reward")(lambda: 0.0)
