import random

import pytest

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.order import Cursor, permutation, prompt_at
from rljob_trainer.data.prompts import Prompt, PromptSet
from rljob_trainer.failure import ConfigurationError

PROMPTS = PromptSet(Prompt(i, (i,), str(i), "", "s") for i in range(10))
SPEC = DataSpec(train=["/x"], seed=3)


def indices(spec: DataSpec, cursor: Cursor, count: int) -> list[int]:
    return [prompt_at(position, spec, PROMPTS).index for position in cursor.draw(count)[0]]


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
    positions, cursor = Cursor().draw(7)
    resumed = Cursor.restore(cursor.use(positions).state(PROMPTS), PROMPTS)
    assert indices(SPEC, resumed, 8) == indices(SPEC, Cursor(), 15)[7:]


@pytest.mark.parametrize("consumed", [10, 20, 9, 11])
def test_a_resume_at_and_around_the_end_of_an_epoch_goes_on_with_the_next_prompt(consumed):
    """rl.md 8d, pitfall 20: the count of consumed prompts is the truth, nothing else is kept or lost at the boundary."""
    resumed = Cursor.restore(Cursor(consumed).state(PROMPTS), PROMPTS)
    assert indices(SPEC, resumed, 5) == indices(SPEC, Cursor(), 30)[consumed : consumed + 5]


def test_what_was_drawn_and_not_used_comes_first_in_the_next_draw_whatever_its_size():
    positions, cursor = Cursor().draw(6)
    cursor = Cursor.restore(cursor.use([0, 2, 3, 5]).state(PROMPTS), PROMPTS)
    assert positions == (0, 1, 2, 3, 4, 5) and cursor == Cursor(6, (1, 4))
    assert cursor.draw(6)[0] == (1, 4, 6, 7, 8, 9)
    assert cursor.draw(1) == ((1,), cursor)
    assert cursor.use((1, 4)) == Cursor(6)


def test_however_much_is_begun_and_left_over_every_prompt_is_used_once_per_epoch():
    chance, cursor, used = random.Random(0), Cursor(), []
    for _ in range(200):
        positions, drawn = cursor.draw(chance.randint(1, 12))
        chosen = chance.sample(positions, chance.randint(0, len(positions)))
        if chance.random() < 0.8:  # else the batch was begun and not trained
            used, cursor = [*used, *chosen], Cursor.restore(drawn.use(chosen).state(PROMPTS), PROMPTS)
    assert sorted([*used, *cursor.pending]) == list(range(cursor.consumed))
    assert sorted(prompt_at(p, SPEC, PROMPTS).index for p in range(10, 20)) == list(range(10))


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
