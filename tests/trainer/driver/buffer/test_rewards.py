"""What rewards make of a step, in the whole driver: dynamic sampling, greedy baselines, penalties, readable samples."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_api import names
from rljob_trainer.driver import main
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rank.driver_client import DriverLost
from rljob_trainer.wire.batch import Batch
from trainer.driver.bench import Bench, Characters, Rank, batch, call, publish, trained, until
from trainer.driver.servers import EOS, Server


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    return Bench(tmp_path)


async def begin(bench: Bench, server: Server, step: int = 0, data: dict[str, int] | None = None) -> Rank:
    bench.control(rollouts=(server.endpoint,))
    rank = await bench.connect()
    await call(rank.start, step, data, [], "")
    await until(rank, "newcomers")
    await publish(rank, step, [server])
    return rank


async def first_batch(bench: Bench, server: Server) -> Batch:
    found = await batch(await begin(bench, server))
    bench.driver.cancel()
    return found


async def test_a_response_ends_once_and_every_token_has_its_own_log_probability(bench):
    """rl.md 8d, pitfall 9, on the driver's side; the server's shift is compared with Hugging Face in server/test_generation.py."""
    async with Server("demo-rollout-0") as a:
        found = await first_batch(bench, a)
    for sample in found.samples:
        response = sample.response_tokens.tolist()
        assert response.count(EOS) == 1 and response[-1] == EOS
        assert sample.response_log_probs.tolist() == [-0.5 - i for i in range(len(response))]
        assert sample.data_source == "sum" and sample.baseline_reward is None


async def test_dynamic_sampling_trains_on_what_differs_and_a_resumed_attempt_draws_the_same(bench):
    bench.spec["algorithm"] = {"dynamicSampling": {"maxRounds": 6}}
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: left == 4 or (left % 2 == 1 and sample == 0)
        rank = await begin(bench, a)
        found = await batch(rank)
        assert [(s.group, s.sample, s.reward) for s in found.samples] == [
            (g, i, float(i > 0)) for g in range(4) for i in range(3)
        ]
        m = found.metrics
        rounds = int(m["sampling/rounds"])
        assert (
            rounds >= 2 and 0 < m["sampling/kept"] < 1 and m["sampling/all_correct"] > 0 and m["sampling/all_wrong"] > 0
        )
        assert m["sampling/kept"] * 4 * rounds == 4 + m["sampling/surplus"]
        await trained(rank, 1)
        state = await call(rank.saving)
        assert state["consumed"] == 4 * rounds
        await publish(rank, 1, [a])
        expected = (await batch(rank)).samples
        bench.driver.cancel()
        rank = await begin(bench, a, 1, state)
        assert (await batch(rank)).samples == expected
        bench.driver.cancel()


async def test_a_step_that_dynamic_sampling_cannot_fill_ends_the_attempt_with_the_counts(bench):
    bench.spec["algorithm"] = {"dynamicSampling": {"maxRounds": 2}}
    async with Server("demo-rollout-0") as a:
        rank = await begin(bench, a)
        with pytest.raises(DriverLost):
            await batch(rank)
        with pytest.raises(ConfigurationError, match="only 0 of the 4 prompts .* of 8 prompts 8 were all right"):
            await bench.driver


async def test_a_prompt_that_comes_twice_in_a_step_is_sampled_with_another_seed(bench):
    bench.spec["train"]["promptsPerStep"] = 24
    async with Server("demo-rollout-0") as a:
        await first_batch(bench, a)
        assert len({r["seed"] for r in a.requests}) == 24


async def test_remax_compares_every_sample_with_its_prompts_greedy_response(bench):
    bench.spec["algorithm"] = {"advantage": "remax"}
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: body["temperature"] == 0 and left % 2 == 0
        found = await first_batch(bench, a)
        greedy = [r for r in a.requests if r["temperature"] == 0]
    assert [r["n"] for r in greedy] == [1] * 4 and len(a.requests) == 8
    for sample in found.samples:
        left = int(chr(sample.prompt_tokens[0]))
        assert (sample.reward, sample.baseline_reward) == (1.0, float(left % 2))


async def test_a_greedy_response_that_cannot_be_judged_takes_its_group_with_it(bench, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def reward(prompt, response, answer):\n    return 1 / (response == answer)\n")
    bench.spec |= {"algorithm": {"advantage": "remax"}, "rewards": [{"python": {"path": str(reward)}}]}
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: body["temperature"] == 0 and left % 2 == 0
        found = await first_batch(bench, a)
    assert {int(chr(s.prompt_tokens[0])) % 2 for s in found.samples} == {1}
    assert found.metrics["reward/failed"] == found.metrics["reward/failed_raised"] == 12 - len(found.samples) > 0


async def test_what_a_reward_reports_of_the_row_and_the_tokens_becomes_metrics_of_the_step(bench, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def reward(response, answer, row, tokens, truncated):\n"
        "    own = row['answer'] == answer and row['prompt'].endswith('=') and tokens == list(map(ord, response + '.'))\n"
        "    return {'score': response == answer, 'own': own, 'truncated': truncated, 'pred': response}\n"
    )
    bench.spec |= {"rewards": [{"python": {"path": str(reward)}}], "evaluation": {"everySteps": 1}}
    async with Server("demo-rollout-0") as a:
        found = await batch(await begin(bench, a))
        await bench.evaluated()
        bench.driver.cancel()
    assert [m.get("evaluation_metrics/own") for m in bench.metrics() if "evaluation/reward" in m] == [1.0]
    own = {name: value for name, value in found.metrics.items() if name.startswith("reward_metrics/")}
    assert own == {"reward_metrics/own": 1.0, "reward_metrics/truncated": 0.0} and found.metrics["reward/mean"] == 1.0
    line = json.loads(names.samples_file(bench.root, 1).read_text().splitlines()[0])
    assert (line["metrics"], line["prediction"]) == ({"own": 1.0, "truncated": 0.0}, line["response"].removesuffix("."))
    assert line["answer"] == line["prediction"]


async def test_a_sample_that_is_wrong_is_logged_with_the_answer_of_its_own_row(bench):
    async with Server("demo-rollout-0") as a:
        a.wrong = lambda left, sample, body: sample == 0
        await first_batch(bench, a)
    lines = [json.loads(line) for line in names.samples_file(bench.root, 1).read_text().splitlines()]
    assert {line["reward"] for line in lines} == {0.0, 1.0}
    for line in lines:
        left, right = line["prompt"].removesuffix("=").split("+")
        assert line["answer"] == str(int(left) + int(right))
        assert (line["response"].removesuffix(".") == line["answer"]) == (line["reward"] == 1.0)


async def test_a_file_of_verls_reads_the_columns_of_verls_data(bench, tmp_path):
    rows = [
        {"prompt": f"{a}+2=", "data_source": "sum", "reward_model": {"ground_truth": a + 2}, "extra_info": {"index": a}}
        for a in range(1, 5)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
    (tmp_path / "verl.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': ground_truth == int(solution_str) == extra_info['index'] + 2, 'index': extra_info['index']}\n"
    )
    bench.spec["data"] = {"train": [str(tmp_path / "verl.parquet")], "answerKey": "reward_model.ground_truth"}
    bench.spec["rewards"] = [{"python": {"path": str(tmp_path / "verl.py"), "interface": "verl"}}]
    async with Server("demo-rollout-0") as a:
        metrics = (await first_batch(bench, a)).metrics
    assert (metrics["reward/mean"], metrics["reward_metrics/index"]) == (1.0, 2.5)


async def test_a_long_response_and_a_long_greedy_response_are_penalised_alike(bench):
    bench.spec["rollout"]["sampling"] = {"maxTokens": 4}
    bench.spec["algorithm"] = {"advantage": "remax", "overlong": {"bufferTokens": 3, "penalty": 0.75}}
    async with Server("demo-rollout-0") as a:
        found = await first_batch(bench, a)
    assert {(s.reward, s.baseline_reward) for s in found.samples} == {(0.75, 0.75)}, (
        "two of four tokens: a third of 0.75"
    )
    assert found.metrics["reward/overlong_penalty"] == 0.25


async def test_samples_of_the_step_are_written_to_be_read(bench):
    async with Server("demo-rollout-0") as a:
        found = await first_batch(bench, a)
    lines = [json.loads(line) for line in names.samples_file(bench.root, 1).read_text().splitlines()]
    assert len(lines) == len(found.samples)
    assert lines[0]["prompt"].endswith("=") and lines[0]["response"].endswith(".") and lines[0]["reward"] == 1.0


async def test_rows_left_out_and_doubled_are_metrics(bench):
    bench.spec["data"]["train"] *= 2
    bench.spec["data"]["maxPromptTokens"] = 4
    async with Server("demo-rollout-0") as a:
        metrics = (await first_batch(bench, a)).metrics
    assert (metrics["data/too_long"], metrics["data/duplicates"]) == (0.0, 12.0)
