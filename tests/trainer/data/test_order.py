import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.order import Cursor, permutation
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.failure import ConfigurationError

PROMPTS = PromptSet(tuple(Prompt(i, (i,), str(i), "", "s") for i in range(10)), 0)
SPEC = DataSpec(train=["/x"], seed=3)


def indices(spec: DataSpec, cursor: Cursor, count: int) -> list[int]:
    return [p.index for p in cursor.draw(spec, PROMPTS, count)[0]]


def test_every_epoch_holds_every_prompt_once_in_an_order_of_its_own():
    drawn = indices(SPEC, Cursor(), 20)
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_the_order_depends_on_the_seed_only():
    assert permutation(10, 3, 0) == permutation(10, 3, 0) != permutation(10, 4, 0)
    assert permutation(1000, 0, 0)[:5] == permutation(1000, 0, 0)[:5]


def test_without_shuffling_prompts_come_as_they_stand():
    assert indices(SPEC.model_copy(update={"shuffle": False}), Cursor(), 12) == [*range(10), 0, 1]


def test_draws_of_any_size_and_interruption_give_the_same_sequence():
    _, cursor = Cursor().draw(SPEC, PROMPTS, 7)
    resumed = Cursor.restore(cursor.state(PROMPTS), PROMPTS)
    assert indices(SPEC, resumed, 8) == indices(SPEC, Cursor(), 15)[7:]


def test_other_data_than_the_checkpoints_are_refused():
    with pytest.raises(ConfigurationError, match="made with 11 prompts, now there are 10"):
        Cursor.restore({"consumed": 5, "prompts": 11}, PROMPTS)


def test_epochs_are_counted_in_passes():
    assert Cursor(25).epoch(PROMPTS) == 2.5
