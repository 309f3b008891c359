import pytest

from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.errors import UnknownNameError


@pytest.mark.parametrize("name", DATASET_REGISTRY.names())
def test_every_name_leads_to_a_function(name: str) -> None:
    DATASET_REGISTRY.check(name)
    assert callable(DATASET_REGISTRY.resolve(name))


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gsm8k'"):
        DATASET_REGISTRY.check("gsm8")
