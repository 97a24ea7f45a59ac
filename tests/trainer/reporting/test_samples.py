import json
import math
from dataclasses import replace

from rljob_api import names
from rljob_trainer.reporting.samples import KEPT_STEPS, LONGEST_TEXT, MOST_TOKENS, PROMPTS, SAMPLES, write_samples
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory, environment, prompt, sampled


class Letters:
    """One token per character."""

    def decode(self, token_ids, *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))


def batch(step: int, groups: int = 1, samples: int = 1, response: str = "ä.") -> Batch:
    tokens = tuple(map(ord, response))
    made = [
        Trajectory.of_response(
            (ord("?"),),
            tokens,
            (0.0,) * len(tokens),
            step - 1,
            prompt_index=7,
            group=g,
            sample=i,
            finish_reason="length",
            reward=0.5,
            data_source="sum",
        )
        for g in range(groups)
        for i in range(samples)
    ]
    return Batch.of(step, made, {})


def lines(root, step: int) -> list[dict]:
    return [json.loads(line) for line in names.samples_file(root, step).read_text().splitlines()]


def test_a_few_samples_of_a_step_are_readable_with_their_reward_and_end(tmp_path):
    scored = {(0, 1): {"metrics": {"acc": 1.0}, "prediction": "4"}}
    write_samples(tmp_path, batch(3, groups=9, samples=9), Letters(), scored)
    found = lines(tmp_path, 3)
    assert len(found) == PROMPTS * SAMPLES
    expected = {"prompt_index": 7, "sample": 0, "data_source": "sum", "reward": 0.5, "truncated": True}
    tokens = [["ä", 0.0], [".", 0.0]]
    written = [
        {"source": "prompt", "text": "?"},
        {"source": "policy", "policy_step": 2, "text": "ä.", "tokens": tokens},
    ]
    assert found[0] == expected | {"prompt": "?", "response": "ä.", "segments": written}
    assert found[1] == found[0] | {"sample": 1, "metrics": {"acc": 1.0}, "prediction": "4"}


def test_long_texts_and_old_steps_do_not_fill_the_volume(tmp_path):
    for step in range(1, KEPT_STEPS + 4):
        write_samples(tmp_path, batch(step), Letters(), {})
    kept = {int(f.stem.removeprefix("step_")) for f in (tmp_path / "samples").iterdir()}
    assert kept == set(range(4, KEPT_STEPS + 4))
    write_samples(tmp_path, batch(1, response="x" * (LONGEST_TEXT + 1)), Letters(), {})
    assert len(lines(tmp_path, 1)[0]["response"]) == LONGEST_TEXT


def test_a_file_that_somebody_put_beside_them_stays_and_harms_nothing(tmp_path):
    write_samples(tmp_path, batch(1), Letters(), {})
    copy = names.samples_file(tmp_path, 1).rename(tmp_path / "samples" / "step_1_before.jsonl")
    write_samples(tmp_path, batch(KEPT_STEPS + 1), Letters(), {})
    assert copy.exists()


def test_tokens_of_the_policy_have_their_log_probabilities_up_to_so_many_of_a_sample(tmp_path):
    turn = [sampled([ord(c)] * 600, [value] * 600, 4) for c, value in (("a", -0.123456), ("b", -math.inf))]
    turn[0] = replace(turn[0], reward=0.25)
    segments = (prompt([ord("?")]), turn[0], environment([ord("!")]), turn[1])
    one = Trajectory(segments, 7, 0, 0, finish_reason="stop", reward=0.5, data_source="")
    write_samples(tmp_path, Batch.of(6, [one], {}), Letters(), {})
    (line,) = lines(tmp_path, 6)
    _, first, between, second = line["segments"]
    assert first["tokens"] == [["a", -0.1235]] * 600 and first["reward"] == 0.25
    assert between == {"source": "environment", "text": "!"}
    assert second["tokens"] == [["b", None]] * (MOST_TOKENS - 600) and len(second["text"]) == 600
    assert second["rest"] == "b" * (1200 - MOST_TOKENS) and "rest" not in first


def test_tokens_keep_the_space_in_front_of_them_though_a_decoder_drops_the_first(tmp_path):
    class Words:
        """As SentencePiece: a token begins with a space, which is none at the beginning of a text."""

        def decode(self, token_ids, *, skip_special_tokens: bool) -> str:
            return "".join(("", " the", "n", " ")[t] for t in token_ids).removeprefix(" ")

    segments = (prompt([2]), sampled([1, 2, 3, 1], [0.0] * 4, 0))
    one = Trajectory(segments, 7, 0, 0, finish_reason="stop", reward=0.5, data_source="")
    write_samples(tmp_path, Batch.of(1, [one], {}), Words(), {})
    assert [text for text, _ in lines(tmp_path, 1)[0]["segments"][1]["tokens"]] == [" the", "n", " ", " the"]
