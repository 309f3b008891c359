"""The documented names of lane eval."""

from astraflow.core.protocol import messages as m


def test_a_round_under_its_documented_names(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        await h.register()
        call = h.client._call
        await call("/eval_start", m.Empty(), m.Ok)
        row = {"messages": [{"role": "user", "content": "1"}], "answer": "42"}
        tasks = [m.Task(task_id="e1", group_id=1, data=row)]
        assert (await call("/eval_submit", m.SubmitRequest(tasks=tasks), list[m.Accepted]))[0].accepted
        pulled = await call("/eval_pull", m.PullRequest(timeout=5), m.EvalPullResult)
        assert [item.task_id for item in pulled.items] == ["e1"]
        assert (pulled.inflight, pulled.pending, pulled.total_submitted) == (0, 0, 1)
        assert await h.client.pull(m.PullRequest(lane="train")) == []
        await call("/eval_end", m.Empty(), m.Ok)

    raas(body)
