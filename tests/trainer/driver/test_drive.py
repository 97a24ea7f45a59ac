"""The driver as rank 0 sees it: the real process's code, over its real socket, with rollout servers in this process."""

import asyncio

import pytest

from rljob_api import names
from rljob_trainer import failure
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rank.driver_client import DriverLost
from trainer.ages import token_ages
from trainer.data.templates import QWEN, tokenizer
from trainer.driver.bench import SECONDS, Bench, Characters, batch, begun, call, publish, trained, until
from trainer.driver.servers import Server


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    return Bench(tmp_path)


async def test_a_run_from_the_first_publish_to_the_goodbye(bench):
    bench.spec["evaluation"] = {"everySteps": 2}
    bench.spec["train"]["batches"] = {"record": True}
    async with Server("demo-rollout-0") as a, Server("demo-rollout-1") as b:
        bench.control(rollouts=(a.endpoint, b.endpoint))
        rank = await bench.connect()
        await call(rank.start, 0, None, [], "torch layers")
        targets = await until(rank, "newcomers")
        assert {r["pod"] for r in targets} == {"demo-rollout-0", "demo-rollout-1"}
        await publish(rank, 0, [a, b])
        for step in (1, 2):
            found = await batch(rank)
            assert [(s.group, s.sample) for s in found.samples] == [(g, s) for g in range(4) for s in range(3)]
            assert token_ages(step, found.samples) == (0, 0) and {s.reward for s in found.samples} == {1.0}
            assert len(await trained(rank, step)) == 2
            await publish(rank, step, [a, b])
        state = await call(rank.saving)
        assert (state["consumed"], state["rows"]) == (8, 12)
        await call(rank.saved, 2, [], 1.5, 20.0)
        assert await until(rank, "over") == "succeeded"
        await call(rank.end, "/exported")
        await asyncio.wait_for(bench.driver, SECONDS)
    assert a.requests and b.requests
    progress = bench.progress()
    assert (progress.step, progress.policy_step, progress.digest, progress.export) == (2, 2, "digest2", "/exported")
    assert (progress.phase, progress.evaluation, [p.step for p in progress.history]) == (
        "finishing",
        {"first": 1.0, "last": 1.0},
        [1, 2],
    )
    assert progress.saving == 21.5, "with what was written in the background"
    assert progress.pace == pytest.approx(sum(point.seconds for point in progress.history) / 2)
    evaluated = [m["step"] for m in bench.metrics() if "evaluation/reward" in m]
    assert evaluated == [0, 2]
    assert names.batch_file(bench.root, 2).exists()


async def test_epochs_of_prompts_become_steps_that_pass_each_prompt_once(bench):
    bench.spec["train"] = {"epochs": 1, "promptsPerStep": 4, "samplesPerPrompt": 3}
    async with Server("demo-rollout-0") as a:
        bench.control(rollouts=(a.endpoint,))
        rank = await bench.connect()
        assert await call(rank.steps) == 3
        await call(rank.start, 0, None, [], "")
        await until(rank, "newcomers")
        await publish(rank, 0, [a])
        prompts: list[int] = []
        for step in (1, 2, 3):
            prompts += {s.prompt_index for s in (await batch(rank)).samples}
            await trained(rank, step)
            await publish(rank, step, [a])
        assert await until(rank, "over") == "succeeded"
        await call(rank.end, "")
        await asyncio.wait_for(bench.driver, SECONDS)
    assert sorted(prompts) == list(range(12))
    assert (bench.progress().steps, [m["data/epoch"] for m in bench.metrics() if "data/epoch" in m][-1]) == (3, 1.0)


async def test_a_replica_that_dies_while_it_generates_costs_no_sample_and_comes_back_with_new_weights(bench):
    async with Server("demo-rollout-0", delay=0.2) as a, Server("demo-rollout-1", delay=0.2) as b:
        bench.control(rollouts=(a.endpoint, b.endpoint))
        rank = await bench.connect()
        await call(rank.start, 0, None, [], "")
        await until(rank, "newcomers")
        b.dying = True
        await publish(rank, 0, [a, b])
        found = await batch(rank)
        assert len(found.samples) == 12 and found.metrics["rollout/redispatched"] > 0
        assert await trained(rank, 1) == ["demo-rollout-0"]
        b.dying = False
        a.answering.clear()
        await publish(rank, 1, [a])
        again = await until(rank, "newcomers")
        assert [r["pod"] for r in again] == ["demo-rollout-1"]
        await publish(rank, 1, [b])
        a.answering.set()
        await batch(rank)
        assert {r.pod: r.policy_step for r in bench.progress().rollouts}.keys() == {"demo-rollout-0", "demo-rollout-1"}
        bench.driver.cancel()


async def test_a_newcomer_is_published_to_while_the_others_generate(bench):
    async with Server("demo-rollout-0") as a, Server("demo-rollout-1") as b:
        a.answering.clear()
        bench.control(rollouts=(a.endpoint,))
        rank = await bench.connect()
        await call(rank.start, 0, None, [], "")
        await until(rank, "newcomers")
        await publish(rank, 0, [a])
        bench.control(rollouts=(a.endpoint, b.endpoint))
        word = await until(rank, "newcomers")
        assert [r["pod"] for r in word] == ["demo-rollout-1"]
        await publish(rank, 0, [b])
        a.answering.set()
        await batch(rank)
        bench.driver.cancel()
    published = [(m.get("time/sync"), m["rollout/replicas"]) for m in bench.metrics() if "rollout/replicas" in m]
    assert published == [(0.1, 1.0), (None, 2.0)], "a newcomer's update is not the step's"


async def test_generation_waits_for_min_replicas(bench):
    bench.spec["rollout"]["minReplicas"] = 2
    async with Server("demo-rollout-0") as a, Server("demo-rollout-1") as b, begun(bench, [a]) as rank:
        assert await call(rank.next) == {}
        waiting = await bench.in_phase("waiting")
        assert not a.requests
        assert await call(rank.next) == {}
        assert bench.progress().heartbeat == waiting.heartbeat, "waiting is no progress"
        bench.control(rollouts=(a.endpoint, b.endpoint))
        await until(rank, "newcomers")
        await publish(rank, 0, [b])
        await batch(rank)


async def test_a_replica_that_did_not_take_the_weights_generates_nothing(bench):
    async with Server("demo-rollout-0") as a, Server("demo-rollout-1") as b:
        bench.control(rollouts=(a.endpoint, b.endpoint))
        rank = await bench.connect()
        await call(rank.start, 0, None, [], "")
        await until(rank, "newcomers")
        await publish(rank, 0, [a], failed={"demo-rollout-1": "digest differs"})
        await batch(rank)
        assert a.requests and not b.requests
        bench.driver.cancel()


async def test_drain_comes_at_once_also_when_nobody_generates(bench):
    bench.control()
    rank = await bench.connect()
    await call(rank.start, 0, None, [], "")
    assert await call(rank.next) == {}
    bench.control("drain")
    assert await until(rank, "over") == "drained"
    await call(rank.end, "")
    await asyncio.wait_for(bench.driver, SECONDS)


async def test_a_resumed_attempt_samples_what_an_uninterrupted_one_would_have_sampled(bench):
    bench.spec["train"]["batches"] = {"record": True}
    async with Server("demo-rollout-0") as a:
        async with begun(bench, [a]) as rank:
            await batch(rank)
            await trained(rank, 1)
            state = await call(rank.saving)
            await publish(rank, 1, [a])
            expected = (await batch(rank)).samples
            await call(rank.end, "")
            await asyncio.wait_for(bench.driver, SECONDS)
        async with begun(bench, [a], 1, state) as rank:
            assert (await batch(rank)).samples == expected


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_recorded_batches_are_replayed_without_any_rollout(bench, temperature: float):
    bench.spec["rollout"] |= {"sampling": {"temperature": temperature}}
    bench.spec["train"]["batches"] = {"record": True}
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        recorded = await batch(rank)
        await call(rank.end, "")
        await asyncio.wait_for(bench.driver, SECONDS)
    bench.spec["train"]["batches"] = {"replay": str(bench.root / "batches")}
    bench.spec["rollout"] = {"replicas": 0, "sampling": {"temperature": temperature}}
    bench.spec["evaluation"] = {"everySteps": 1}
    bench.control()
    rank = await bench.connect()
    await call(rank.start, 0, None, [], "")
    assert await batch(rank) == recorded
    assert await trained(rank, 1) == []
    await publish(rank, 1, [])
    with pytest.raises(DriverLost):
        await batch(rank)
    with pytest.raises(ConfigurationError, match="no batch of step 2"):
        await bench.driver


async def test_a_step_whose_rewards_all_raise_ends_the_attempt_with_the_users_line(bench, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def reward(prompt, response, answer):\n    return 1 / 0\n")
    bench.spec["rewards"] = [{"python": {"path": str(reward)}}]
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        with pytest.raises(DriverLost, match="driver.log, next to this log, says why"):
            await batch(rank)
        with pytest.raises(
            ConfigurationError,
            match=r"reward\(\) in reward.py: ZeroDivisionError: division by zero \(line 2: return 1 / 0\)",
        ):
            await bench.driver


async def test_why_a_driver_ends_is_written_before_it_closes_what_may_take_a_minute(bench, tmp_path, monkeypatch):
    (tmp_path / "reward.py").write_text("def reward(prompt, response, answer):\n    return 1 / 0\n")
    bench.spec["rewards"] = [{"python": {"path": str(tmp_path / "reward.py")}}]
    close, closing, go_on = main.Driver.close, asyncio.Event(), asyncio.Event()

    async def close_late(driver):
        closing.set()
        await go_on.wait()
        await close(driver)

    monkeypatch.setattr(main.Driver, "close", close_late)
    async with Server("demo-rollout-0") as a, begun(bench, [a]) as rank:
        with pytest.raises(DriverLost):
            await batch(rank)
        await asyncio.wait_for(closing.wait(), SECONDS)
        found = failure.read_first(bench.directory)
        assert found and (found.kind, found.exception) == ("configuration", "ConfigurationError")
        go_on.set()
        with pytest.raises(ConfigurationError):
            await bench.driver


async def test_a_missing_file_ends_the_driver_before_rank_0_has_waited(bench):
    bench.spec["data"]["train"] = ["/nowhere.parquet"]
    bench.control()
    rank = await bench.connect()
    with pytest.raises(ConfigurationError, match=r"spec.data.train\[0\]"):
        await bench.driver
    with pytest.raises(DriverLost):
        await call(rank.start, 0, None, [], "")


@pytest.mark.parametrize(("parameter", "is_warned_of"), [("answer", True), ("answer=''", False)])
async def test_answers_that_a_function_takes_and_no_row_has_are_warned_of(bench, tmp_path, parameter, is_warned_of):
    (tmp_path / "reward.py").write_text(f"def reward(response, {parameter}): return 1\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1=", "solution": "2", "data_source": "sum"}\n')
    bench.spec["data"]["train"] = [str(tmp_path / "a.jsonl")]
    bench.spec["rewards"] = [{"python": {"path": str(tmp_path / "reward.py")}}]
    bench.control()
    rank = await bench.connect()
    await call(rank.start, 0, None, [], "torch layers")
    said = " ".join(bench.progress().warnings)
    assert ("set it to solution, which holds '2'" in said) == is_warned_of, said
    bench.driver.cancel()


async def test_warnings_of_several_parts_stand_in_the_status_together(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(main, "load_tokenizer", load_tokenizer)
    tokenizer(QWEN, "<|im_end|>").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    (tmp_path / "reward.py").write_text("def reward(response, answer): return 1\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1=", "solution": "2", "data_source": "sum"}\n')
    bench.spec["data"] |= {"train": [str(tmp_path / "a.jsonl")], "chatTemplate": {"arguments": {"add_vision_id": 1}}}
    bench.spec["rewards"] = [{"python": {"path": str(tmp_path / "reward.py")}}]
    bench.control()
    rank = await bench.connect()
    await call(rank.start, 0, None, [], "torch layers")
    end, argument, answers = bench.progress().warnings
    assert "eos_token_id" in end and "'add_vision_id'" in argument and "holds '2'" in answers
    bench.driver.cancel()
