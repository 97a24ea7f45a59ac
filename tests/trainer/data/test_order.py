import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.order import Cursor, Mixture, permutation, prompt_at, scattered
from rljob_trainer.data.prompts import Prompt, PromptCounts, PromptSet
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
    resumed = Cursor.restore(cursor.use(positions).state(PROMPTS, SPEC), PROMPTS, SPEC)
    assert indices(SPEC, resumed, 8) == indices(SPEC, Cursor(), 15)[7:]


@pytest.mark.parametrize("consumed", [10, 20, 9, 11])
def test_a_resume_at_and_around_the_end_of_an_epoch_goes_on_with_the_next_prompt(consumed):
    """rl.md 8d, pitfall 20: the count of consumed prompts is the truth, nothing else is kept or lost at the boundary."""
    resumed = Cursor.restore(Cursor(consumed).state(PROMPTS, SPEC), PROMPTS, SPEC)
    assert indices(SPEC, resumed, 5) == indices(SPEC, Cursor(), 30)[consumed : consumed + 5]


def test_what_was_drawn_and_not_used_comes_first_in_the_next_draw_whatever_its_size():
    positions, cursor = Cursor().draw(6)
    cursor = Cursor.restore(cursor.use([0, 2, 3, 5]).state(PROMPTS, SPEC), PROMPTS, SPEC)
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
            used, cursor = [*used, *chosen], Cursor.restore(drawn.use(chosen).state(PROMPTS, SPEC), PROMPTS, SPEC)
    assert sorted([*used, *cursor.pending]) == list(range(cursor.consumed))
    assert sorted(prompt_at(p, SPEC, PROMPTS).index for p in range(10, 20)) == list(range(10))


def test_files_are_mixed_by_their_weights_and_each_is_passed_as_often_as_its_share_asks():
    """Three prompts in the first file and seven in the second, drawn half and half."""
    prompts = PromptSet(PROMPTS[:], PromptCounts(kept={"a": 3, "b": 7}))
    spec = SPEC.model_copy(update={"weights": [1.0, 1.0]})
    drawn = [prompt_at(p, spec, prompts).index for p in range(70)]
    for epoch in range(7):
        assert sum(i < 3 for i in drawn[10 * epoch : 10 * epoch + 10]) == 5
    count = Counter(drawn)
    assert {count[i] for i in range(3)} <= {11, 12} and {count[i] for i in range(3, 10)} == {5}


def test_other_data_than_the_checkpoints_are_refused():
    state = Cursor(5).state(PROMPTS, SPEC)
    with pytest.raises(ConfigurationError, match="made with 11 rows, now there are 10"):
        Cursor.restore(state | {"rows": 11}, PROMPTS, SPEC)
    other = PromptSet(Prompt(i, (i,), str(i + 1), "", "s") for i in range(10))
    with pytest.raises(ConfigurationError, match="texts or order differ"):
        Cursor.restore(state, other, SPEC)


def test_a_prompt_set_gives_back_what_it_was_made_of():
    prompts = [Prompt(i, tuple(range(i)), f"text {i}", f"answer {i}", "s") for i in range(4)]
    assert list(PromptSet(prompts)) == prompts and PromptSet(prompts)[-1] == prompts[-1]
    assert PromptSet(prompts)[1:3] == prompts[1:3]


def test_epochs_are_counted_in_passes():
    assert Cursor(25).epoch(PROMPTS) == 2.5


@given(size=st.integers(1, 300), key=st.text(max_size=5))
def test_a_scattered_order_holds_every_place_once(size, key):
    assert sorted(scattered(i, size, key) for i in range(size)) == list(range(size))


def test_a_scattered_order_is_as_mixed_as_a_shuffled_one():
    """Spearman's footrule of 1,000 places: 1/3 of the square for a random order, with a deviation of 0.9 % (Diaconis and Graham 1977)."""
    for key in "abc":
        order = [scattered(i, 1000, key) for i in range(1000)]
        assert sum(abs(i - p) for i, p in enumerate(order)) / 1e6 == pytest.approx(1 / 3, abs=0.03)
        assert abs(sum(b > a for a, b in pairwise(order)) - 499.5) < 4 * 9.2  # ascents: variance (n + 1) / 12
    assert [scattered(i, 1000, "a") for i in range(9)] != [scattered(i, 1000, "b") for i in range(9)]


def test_files_are_mixed_by_their_sizes_and_every_row_comes_once_an_epoch():
    order = Mixture((30, 70), (), seed=1, shuffle=True)
    first, second = ([order.row(p) for p in range(e * 100, e * 100 + 100)] for e in (0, 1))
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    assert 0.1 < sum(row < 30 for row in first[:50]) / 50 < 0.5


def test_weights_give_each_file_its_share_of_every_epoch_and_use_all_its_rows_evenly():
    order = Mixture((30, 70), (3.0, 1.0), seed=1, shuffle=True)
    drawn = [[order.row(p) for p in range(e * 100, e * 100 + 100)] for e in range(14)]
    assert {sum(row < 30 for row in epoch) for epoch in drawn} == {75}
    times = Counter(row for epoch in drawn for row in epoch)
    assert {times[row] for row in range(30)} == {35} and {times[row] for row in range(30, 100)} == {5}
    assert len({row for row in drawn[0] if row >= 30}) == 25


def test_without_shuffling_rows_come_as_they_stand_file_after_file():
    assert [Mixture((2, 3), (), 1, False).row(p) for p in range(7)] == [0, 1, 2, 3, 4, 0, 1]


def test_shares_of_an_epoch_are_whole_numbers_that_lose_no_draw():
    order = Mixture((1, 1, 8), (1.0, 1.0, 1.0), seed=0, shuffle=False)
    assert Counter(order.row(p) for p in range(10))[0] == 4 and sum(1 for p in range(10) if order.row(p) > 1) == 3


def test_a_resume_with_another_order_of_the_same_data_is_refused_and_names_what_changed():
    other = {"seed": 4, "shuffle": False, "weights": [1.0, 3.0]}
    state = json.loads(json.dumps(Cursor(5).state(PROMPTS, SPEC)))
    assert Cursor.restore(state, PROMPTS, SPEC) == Cursor(5)
    for field, value in other.items():
        with pytest.raises(
            ConfigurationError, match="some rows would come twice and some never; set it back"
        ) as caught:
            Cursor.restore(state, PROMPTS, SPEC.model_copy(update={field: value}))
        assert caught.value.field == f"spec.data.{field}"


def test_a_seed_that_orders_nothing_may_change():
    plain = SPEC.model_copy(update={"shuffle": False})
    state = Cursor(5).state(PROMPTS, plain)
    assert Cursor.restore(state, PROMPTS, plain.model_copy(update={"seed": 4})) == Cursor(5)


def test_the_same_rows_in_files_of_other_sizes_are_another_order_only_with_weights():
    mixed = SPEC.model_copy(update={"weights": [1.0, 1.0]})
    three, four = (PromptSet(PROMPTS[:], PromptCounts(kept={"a": n, "b": 10 - n})) for n in (3, 4))
    with pytest.raises(ConfigurationError, match=r"made with \[3, 7\]") as caught:
        Cursor.restore(Cursor(5).state(three, mixed), four, mixed)
    assert caught.value.field == "spec.data.train"
    assert Cursor.restore(Cursor(5).state(three, SPEC), four, SPEC) == Cursor(5)
