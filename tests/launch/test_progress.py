from astraflow.launch.progress import Progress


def test_records_and_live_counters_meet() -> None:
    progress = Progress(total_steps=10, staleness_bound=2)
    progress.take_status({"status": "starting", "live": {"tokens_per_s": 5.0}})
    assert (progress.activity, progress.rollout_tokens_per_s, progress.eta_s) == ("starting", 5.0, None)
    progress.take_status({"eval_running": True, "live": {"eval_progress": {"done": 3, "total": 8, "version": 0}}})
    assert progress.activity == "evaluating 3/8"
    progress.take({"step": 0, "time": 0.0, "eval/a/avg@k": 25.0})
    for step, time in ((1, 10.0), (2, 14.0), (3, 18.0)):
        progress.take({"step": step, "time": time, "version": step, "staleness/max": 1.0, "rollout/reward_mean": 0.5})
    progress.take_status({"status": "ready", "live": {"reward": 0.75}})
    assert (progress.step, progress.version, progress.reward) == (3, 3, 0.75)
    assert progress.activity == "training"
    assert progress.eta_s == 28.0
    assert [(step, accuracy.sampled) for step, accuracy in progress.evaluations] == [(0, 0.25)]


def test_no_answer_changes_nothing() -> None:
    progress = Progress(total_steps=10, staleness_bound=2)
    progress.take_status({})
    assert progress.activity == "starting"
