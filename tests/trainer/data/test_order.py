import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.order import Cursor, permutation
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.failure import ConfigurationError

PROMPTS = PromptSet(Prompt(i, (i,), str(i), "", "s") for i in range(10))
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


@pytest.mark.parametrize("consumed", [10, 20, 9, 11])
def test_a_resume_at_and_around_the_end_of_an_epoch_goes_on_with_the_next_prompt(consumed):
    """rl.md 8d, pitfall 20: the count of consumed prompts is the truth, nothing else is kept or lost at the boundary."""
    resumed = Cursor.restore(Cursor(consumed).state(PROMPTS), PROMPTS)
    assert indices(SPEC, resumed, 5) == indices(SPEC, Cursor(), 30)[consumed : consumed + 5]


def test_other_data_than_the_checkpoints_are_refused():
    state = Cursor(5).state(PROMPTS)
    with pytest.raises(ConfigurationError, match="made with 11 prompts, now there are 10"):
        Cursor.restore(state | {"prompts": 11}, PROMPTS)
    other = PromptSet(Prompt(i, (i,), str(i + 1), "", "s") for i in range(10))
    with pytest.raises(ConfigurationError, match="texts or order differ"):
        Cursor.restore(state, other)


def test_a_prompt_set_gives_back_what_it_was_made_of():
    prompts = [Prompt(i, tuple(range(i)), f"text {i}", f"answer {i}", "s") for i in range(4)]
    assert list(PromptSet(prompts)) == prompts and PromptSet(prompts)[-1] == prompts[-1]
    assert PromptSet(prompts)[1:3] == prompts[1:3]


def test_epochs_are_counted_in_passes():
    assert Cursor(25).epoch(PROMPTS) == 2.5
