"""The arithmetic example's starting point: examples/arithmetic/prepare.py."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_trainer.conversion.sets import HELD_OUT_PAIRS, Problem
from script import loaded

SCRIPT = Path(__file__).parents[2] / "examples" / "arithmetic" / "prepare.py"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    return loaded(SCRIPT)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def started(prepare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("arithmetic")
    prepare.write_start(output, "qwen2", seed=5)
    return output


def pairs(problems: list) -> set[frozenset[int]]:
    """The terms of problems, whatever their order."""
    return {frozenset(map(int, problem.prompt.rstrip("=").split("+"))) for problem in problems}


def test_train_and_held_out_cover_all_sums_and_share_none_in_either_order(prepare: ModuleType) -> None:
    train, held_out = prepare.split_problems(seed=0)
    assert len({p.prompt for p in train + held_out}) == len(train) + len(held_out) == 90 * 90
    assert not pairs(train) & pairs(held_out)
    assert len(pairs(held_out)) == HELD_OUT_PAIRS


def test_every_answer_is_the_sum_and_every_prompt_has_six_characters(prepare: ModuleType) -> None:
    for problem in prepare.split_problems(seed=3)[0]:
        a, b = problem.prompt.removesuffix("=").split("+")
        assert problem.answer == str(int(a) + int(b))
        assert len(problem.prompt) == 6


def test_the_seed_decides_the_split(prepare: ModuleType) -> None:
    assert prepare.split_problems(1) == prepare.split_problems(1) != prepare.split_problems(2)


def test_the_saved_tokenizer_gives_back_what_it_reads_and_adds_nothing(prepare: ModuleType, tmp_path: Path) -> None:
    prepare.make_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("37+48=").input_ids
    assert len(ids) == 6
    assert tokenizer.decode(ids) == "37+48="
    assert tokenizer.decode([*tokenizer("85").input_ids, tokenizer.eos_token_id], skip_special_tokens=True) == "85"
    assert len(tokenizer) == 16


def test_a_character_outside_the_alphabet_is_refused(prepare: ModuleType) -> None:
    with pytest.raises(Exception, match="Missing"):
        prepare.make_tokenizer()("37 plus 48")


def test_encoding_pads_answers_and_leaves_the_tokenizer_as_it_was(prepare: ModuleType) -> None:
    tokenizer = prepare.make_tokenizer()
    examples = prepare.encode(
        [Problem("37+48=", "85", "arithmetic"), Problem("99+99=", "198", "arithmetic")], tokenizer
    )
    assert examples.prompts.shape == (2, 6)
    assert tokenizer.batch_decode(examples.answers) == ["85<eos><pad>", "198<eos>"]
    assert tokenizer.backend_tokenizer.padding is None


@torch.no_grad()
def test_sampled_accuracy_is_the_chance_to_draw_the_answer_token_by_token(prepare: ModuleType) -> None:
    tokenizer = prepare.make_tokenizer()
    model = prepare.make_model("qwen2", tokenizer, seed=0)
    chance, text = 1.0, "37+48="
    for token in ["8", "5", "<eos>"]:
        probabilities = model(tokenizer(text, return_tensors="pt").input_ids).logits[0, -1].softmax(0)
        chance *= probabilities[tokenizer.convert_tokens_to_ids(token)].item()
        text += token
    examples = prepare.encode([Problem("37+48=", "85", "arithmetic")], tokenizer)
    assert prepare.sampled_accuracy(model, examples) == pytest.approx(chance, rel=1e-4)


def test_the_model_before_its_warm_up_is_a_directory_that_any_user_can_load(started: Path) -> None:
    held_out = rows(started, "heldout")
    assert held_out[0].keys() == {"prompt", "answer", "data_source"}
    assert {row["data_source"] for row in held_out} == {"arithmetic"}
    model = AutoModelForCausalLM.from_pretrained(started / "untrained")
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    assert model.dtype == torch.float32
    assert modes(started / "untrained") == {0o644}


def test_the_careless_pupil_answers_the_same_problems_backwards(started: Path) -> None:
    right, backwards = rows(started, "train"), rows(started, "backwards")
    assert [(row["prompt"], row["answer"][::-1]) for row in right] == [
        (row["prompt"], row["answer"]) for row in backwards
    ]


def modes(directory: Path) -> set[int]:
    return {file.stat().st_mode & 0o777 for file in directory.iterdir()}


def test_pairs_are_of_the_same_problems_and_their_rejected_sums_are_wrong(started: Path) -> None:
    for problems, suffix in (("train", ""), ("heldout", "_heldout")):
        right = [(row["prompt"], row["answer"]) for row in rows(started, problems)]
        slips, backwards = rows(started, f"pairs{suffix}"), rows(started, f"pairs_backwards{suffix}")
        assert [(row["prompt"], row["chosen"]) for row in slips] == right
        assert {abs(int(row["chosen"]) - int(row["rejected"])) for row in slips} == {1, 10}
        assert [(row["prompt"], row["chosen"]) for row in backwards] == [(p, a) for p, a in right if a != a[::-1]]
        assert all(row["rejected"] == row["chosen"][::-1] for row in backwards)


def rows(started: Path, file: str) -> list[dict[str, str]]:
    return pq.read_table(started / "data" / f"{file}.parquet").to_pylist()


def test_a_seed_always_gives_the_same_start(prepare: ModuleType, started: Path, tmp_path: Path) -> None:
    prepare.write_start(tmp_path, "qwen2", seed=5)
    for file in ("untrained/model.safetensors", "data/train.parquet", "data/pairs.parquet"):
        assert (started / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.slow
@pytest.mark.extra
def test_the_warm_up_is_a_job_that_ends_between_a_fifth_and_two_fifths(
    prepare: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    prepare.main([str(tmp_path)])
    said = capfd.readouterr().out
    assert "300,160 parameters, 7592 training and 508 held-out problems" in said
    assert "arithmetic-warm-up: succeeded" in said
    assert 0.2 <= prepare.measured(tmp_path, seed=0)[1] <= 0.4
    assert modes(tmp_path / "model") == {0o644}
    assert not (tmp_path / "warm-up").exists()


def test_a_value_that_the_warm_up_does_not_take_is_refused_with_its_field(
    prepare: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="the warm-up failed"):
        prepare.main([str(tmp_path), "--set", "train.steps=-1"])
    assert "spec.train.steps" in capfd.readouterr().err
