"""What may be registered, and what a caller is told who got it wrong."""

import pytest

from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.workflow_api import RolloutWorkflow
from astraflow.core.workflow.registry import register_workflow
from astraflow.errors import CallerError


@register_workflow("test_takes_only_an_option")
class TakesOnlyAnOption(RolloutWorkflow):
    def __init__(self, option: int = 1) -> None:
        self.option = option

    async def arun_episode(self, engine, data):
        return None


register_workflow("test_no_workflow")(dict)


def test_registering_is_idempotent_for_the_same_spec(raas) -> None:
    async def body(h) -> None:
        first = await h.register()
        again = await h.register()
        other = await h.register(workflow_id="eval/x")
        assert (first.registered, first.total_workflows) == (True, 1)
        assert (again.registered, again.total_workflows) == (False, 1)
        assert (other.registered, other.total_workflows) == (True, 2)

    raas(body)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workflow_cls": "rlvrr"}, "did you mean 'rlvr'"),
        ({"reward_fn": "math_verifyy"}, "did you mean 'math_verify'"),
        ({"reward_fn": "astraflow.core.data:nothing"}, "does not define 'nothing'"),
        ({"reward_fn": None}, "RLVRWorkflow needs reward_fn"),
        ({"workflow_kwargs": {"enable_thinkin": True}}, "does not take enable_thinkin; it takes: .*enable_thinking"),
        ({"gconfig_overrides": {"temperatur": 1.0}}, "gconfig_overrides: .*temperatur.*fields: .*temperature"),
        ({"gconfig_overrides": {"temperature": 0.0}}, "temperature = 0.0 is out of range"),
        ({"gconfig_overrides": {"top_k": 2**63}}, "top_k = 9223372036854775808 is out of range"),
        ({"gconfig_overrides": {"n_samples": 2**40}}, "n_samples = 1099511627776 is out of range"),
        ({"gconfig_overrides": {"temperature": 1e300}}, r"temperature = 1e\+300 is out of range"),
        ({"gconfig_overrides": {"top_k": 5}}, "cannot honour gconfig.top_k"),
        ({"group_policy": {"retries": 1}}, "group_policy: .*retries"),
        ({"group_policy": {"wait": {"mean_s": -1.0}}}, "mean_s must be > 0"),
        ({"group_policy": {"straggler": "drop"}}, "group_policy: .*straggler"),
        ({"group_policy": {"over_sample": -1}}, "over_sample must be ≥ 0"),
        (
            {"workflow_cls": "test_takes_only_an_option", "reward_fn": None, "group_policy": {"over_sample": 1}},
            "samples whole groups: over_sample and straggler wait need an EpisodeWorkflow",
        ),
        ({"workflow_cls": "test_no_workflow"}, "is not a RolloutWorkflow"),
    ],
)
def test_what_cannot_work_is_refused_by_name(raas, changes, message) -> None:
    async def body(h) -> None:
        with pytest.raises(CallerError, match=message) as caught:
            await h.register(**changes)
        assert caught.value.status == 400
        assert h.service.workflows._registrations == {}

    raas(body, unsupported=("top_k",))


def test_a_workflow_gets_only_what_it_names(raas) -> None:
    async def body(h) -> None:
        await h.register(workflow_cls="test_takes_only_an_option", reward_fn=None, workflow_kwargs={"option": 3})
        registration = h.service.workflows.get("default")
        assert registration.instance(2, False).option == 3

    raas(body)


def test_overrides_change_the_models_sampling(raas) -> None:
    async def body(h) -> None:
        await h.register(gconfig_overrides={"temperature": 0.5, "n_samples": 3})
        registration = h.service.workflows.get("default")
        assert (registration.gconfig.temperature, registration.gconfig.max_new_tokens) == (0.5, 16)
        assert registration.instance(3, False) is registration.instance(3, False)
        assert registration.instance(1, True).gconfig.greedy

    raas(body)


def test_instances_for_ever_other_numbers_of_samples_are_not_all_kept(raas) -> None:
    async def body(h) -> None:
        await h.register(gconfig_overrides={"n_samples": 3})
        registration = h.service.workflows.get("default")
        own = registration.instance(3, False)
        first = registration.instance(100, False)
        for n_samples in range(101, 200):
            registration.instance(n_samples, False)
        assert registration.instance(3, False) is own
        assert registration.instance(100, False) is not first

    raas(body)


def test_another_spec_of_the_same_id_replaces_it(raas) -> None:
    async def body(h) -> None:
        await h.register()
        changed = await h.register(gconfig_overrides={"n_samples": 4})
        assert changed == m.RegisterWorkflowResult(workflow_id="default", registered=True, total_workflows=1)
        assert h.service.workflows.get("default").gconfig.n_samples == 4

    raas(body)
