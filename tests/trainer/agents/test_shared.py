"""What contexts and conversations of a trajectory have in common is kept once."""

import copy

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.agents.shared import with_objects_of, within

SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=6)


@given(st.lists(st.integers(0, 1), max_size=8), SEQUENCES)
def test_values_stay_and_what_the_longer_one_begins_with_takes_no_memory(
    longer: list[int], kept: list[list[int]]
) -> None:
    whole, arrays = np.array(longer, np.int32), [np.array(k, np.int32) for k in kept]
    arrays += [own[: len(own) // 2] for own in arrays]
    for found, own in zip(within(whole, arrays), arrays, strict=True):
        assert found.tolist() == own.tolist()
        if len(own):
            assert np.shares_memory(found, whole) is (longer[: len(own)] == own.tolist())


@given(st.lists(st.integers(0, 1), max_size=8), SEQUENCES)
def test_messages_are_those_of_the_longest_conversation_that_is_continued(
    said: list[int], kept: list[list[int]]
) -> None:
    messages = [{"content": text} for text in said]
    known = [[{"content": text} for text in one] for one in kept]
    found = with_objects_of(copy.deepcopy(messages), known)
    assert found == messages
    longest = max((k for k in known if k == messages[: len(k)]), key=len, default=[])
    assert all(
        any(mine is theirs[i] for theirs in known if len(theirs) > i) for i, mine in enumerate(found[: len(longest)])
    )
