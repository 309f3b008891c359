"""An environment that takes time, and as much as a service's ENVIRONMENT_S says: what makes one slower than another."""

import asyncio
import os

from astraflow.core.workflow.impl.rlvr import RLVRWorkflow

MEAN_S = float(os.environ.get("ENVIRONMENT_S", "2"))
GOLDEN = 0.6180339887
"""Its multiples, less their whole parts, lie evenly between 0 and 1."""


class SlowEnvironment(RLVRWorkflow):
    """The environment asks after a while, half to one and a half times MEAN_S; then it is the quickstart.

    Groups differ, lest all places ask the model at one time; the samples of a group do not.
    """

    async def run(self, engine, task):
        await asyncio.sleep(MEAN_S * (0.5 + task.group_id * GOLDEN % 1.0))
        return await super().run(engine, task)
