import json
import math
from dataclasses import replace

import numpy as np
import pytest

from rljob_api import names
from rljob_trainer.reporting.kept_steps import KEPT_STEPS
from rljob_trainer.reporting.samples import (
    LONGEST_TEXT,
    MOST_IMAGES,
    MOST_TOKENS,
    PROMPTS,
    SAMPLES,
    add_log_probs,
    write_samples,
)
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.images import Image
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


def two_turns(step: int, group: int, log_prob: float = -1.0) -> Trajectory:
    segments = (
        prompt([1]),
        sampled([2, 3], [log_prob] * 2, step - 1),
        environment([4]),
        sampled([5], [-2.0], step - 1),
    )
    return Trajectory(segments, 7, group, 0, finish_reason="stop", reward=0.5, data_source="")


def test_the_trainers_log_probabilities_come_behind_the_rollouts_in_the_order_of_the_tokens(tmp_path):
    made = Batch.of(6, [two_turns(6, group) for group in range(PROMPTS + 2)], {})
    write_samples(tmp_path, made, Letters(), {})
    values = np.arange(3.0 * PROMPTS, dtype=np.float32)
    values[1] = np.nan
    add_log_probs(tmp_path, 6, made.columns, values)
    found = lines(tmp_path, 6)
    assert [t[1:] for s in found[0]["segments"] for t in s.get("tokens", ())] == [
        [-1.0, 0.0],
        [-1.0, None],
        [-2.0, 2.0],
    ]
    assert [t[2] for s in found[-1]["segments"] for t in s.get("tokens", ())] == values[-3:].tolist()
    add_log_probs(tmp_path, 6, made.columns, values)
    assert lines(tmp_path, 6) == found, "a step that is trained again says the same"


def test_a_file_of_other_samples_and_one_that_is_not_there_stay_as_they_are(tmp_path):
    made = Batch.of(6, [two_turns(6, 0)], {})
    add_log_probs(tmp_path, 6, made.columns, np.zeros(3, np.float32))
    assert not (tmp_path / "samples").exists()
    write_samples(tmp_path, batch(6), Letters(), {})
    before = names.samples_file(tmp_path, 6).read_bytes()
    add_log_probs(tmp_path, 6, made.columns, np.zeros(3, np.float32))
    assert names.samples_file(tmp_path, 6).read_bytes() == before


class Numbers:
    """Writes an image as the number of its patches."""

    def png(self, image: Image, most: int) -> bytes:
        return str(len(image.pixels)).encode()


def test_images_of_kept_samples_are_written_once_and_deleted_with_their_step(tmp_path):
    images = [Image(np.zeros((n, 4), np.float32), (1, n), 1) for n in range(1, MOST_IMAGES + 3)]

    def shown(step: int, group: int, chosen) -> Trajectory:
        segments = (prompt([1] * 99, [*enumerate(chosen)]), sampled([2], [-1.0], step - 1))
        return Trajectory(segments, 7, group, 0, finish_reason="stop", reward=0.5, data_source="")

    made = [shown(1, 0, images[:2]), shown(1, 1, images[1:]), shown(1, PROMPTS, images)]
    write_samples(tmp_path, Batch.of(1, made, {}), Letters(), {}, Numbers())
    first, second = (line["segments"][0]["images"] for line in lines(tmp_path, 1))
    assert first == [0, 1] and second == [*range(1, MOST_IMAGES), None, None]
    files = {file.name: file.read_text() for file in (tmp_path / "samples").glob("*.png")}
    assert files == {f"step_1_{n}.png": str(n + 1) for n in range(MOST_IMAGES)}
    write_samples(tmp_path, batch(KEPT_STEPS + 1), Letters(), {})
    assert [file.name for file in (tmp_path / "samples").iterdir()] == [f"step_{KEPT_STEPS + 1}.jsonl"]


def test_a_volume_that_takes_no_samples_costs_a_warning(tmp_path, caplog):
    (tmp_path / "samples").write_text("no directory")
    write_samples(tmp_path, batch(6), Letters(), {})
    assert "samples of step 6 are not in the run directory" in caplog.text


@pytest.mark.parametrize(
    "text", ["{", "[]", "1", "{}", '{"segments": ["a"]}', '{"segments": [{"tokens": [1, 2, 3]}]}', b"\xff"]
)
def test_a_damaged_file_of_samples_costs_a_warning_and_stays(tmp_path, caplog, text):
    made, file = Batch.of(6, [two_turns(6, 0)], {}), names.samples_file(tmp_path, 6)
    file.parent.mkdir()
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = file.read_bytes()
    add_log_probs(tmp_path, 6, made.columns, np.zeros(3, np.float32))
    assert "samples of step 6 lack the trainer's log-probabilities" in caplog.text and file.read_bytes() == before


def test_a_volume_that_takes_no_log_probabilities_costs_a_warning(tmp_path, caplog):
    made = Batch.of(6, [two_turns(6, 0)], {})
    write_samples(tmp_path, made, Letters(), {})
    (tmp_path / "samples" / ".step_6.jsonl.tmp").mkdir()
    add_log_probs(tmp_path, 6, made.columns, np.zeros(3, np.float32))
    assert "samples of step 6 lack the trainer's log-probabilities" in caplog.text


def test_an_image_that_cannot_be_written_costs_a_warning_and_not_the_text(tmp_path, caplog):
    class Fails(Numbers):
        def png(self, image: Image, most: int) -> bytes:
            if len(image.pixels) == 2:
                raise TypeError("image_std is None")
            return super().png(image, most)

    images = [(n, Image(np.zeros((n + 1, 4), np.float32), (1, n + 1), 1)) for n in range(3)]
    one = Trajectory(
        (prompt([1] * 9, images), sampled([2], [-1.0], 0)), 7, 0, 0, finish_reason="stop", reward=0.5, data_source=""
    )
    write_samples(tmp_path, Batch.of(1, [one], {}), Letters(), {}, Fails())
    assert lines(tmp_path, 1)[0]["segments"][0]["images"] == [0, None, None]
    assert "samples of step 1 lack images: TypeError('image_std is None')" in caplog.text
