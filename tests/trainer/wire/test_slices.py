"""Which part of a tensor a worker needs, and how that is said."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.wire.weights.slices import NOTHING, Needs, Slice, covering

SLICES = st.builds(Slice, st.integers(0, 2), st.sampled_from([(), ((0, 4),), ((0, 2), (4, 6))]))
NAMES = st.sampled_from([f"layer.{n}.{what}" for n in range(6) for what in ("q", "norm", "expert.3.up")])


@given(st.dictionaries(NAMES, SLICES), NAMES)
def test_needs_are_what_they_were_made_from_wherever_they_come_from(slices: dict[str, Slice], other: str) -> None:
    found = Needs.from_json(json.loads(json.dumps(Needs.of(slices).as_json())))
    assert found == Needs.of(dict(reversed(slices.items()))) and hash(found) == hash(Needs.of(slices))
    assert {name: found.get(name) for name in (*slices, other)} == {other: slices.get(other)} | slices


def test_what_a_worker_needs_of_many_layers_takes_a_few_lines() -> None:
    slices = {f"layers.{n}.{name}.weight": Slice(0, ((8, 16),)) for n in range(90) for name in ("q", "k")}
    assert Needs.of(slices).as_json() == [
        [Slice(0, ((8, 16),)), [["layers.{}.k.weight", [[[0, 89]]]], ["layers.{}.q.weight", [[[0, 89]]]]]]
    ]


@pytest.mark.parametrize(
    ("boxes", "expected"),
    [
        ([], NOTHING),
        ([((0, 8), (0, 6))], None),
        ([((2, 4), (0, 6))], Slice(0, ((2, 4),))),
        ([((0, 8), (3, 6))], Slice(1, ((3, 6),))),
        ([((0, 2), (0, 6)), ((4, 6), (0, 6))], Slice(0, ((0, 2), (4, 6)))),
        ([((0, 2), (0, 6)), ((1, 3), (0, 6)), ((3, 4), (0, 6))], Slice(0, ((0, 4),))),
        ([((0, 4), (0, 1)), ((4, 8), (0, 1))], Slice(1, ((0, 1),))),
        ([((0, 4), (0, 3))], Slice(0, ((0, 4),))),
        ([((0, 1), (0, 1)), ((7, 8), (5, 6))], Slice(0, ((0, 1), (7, 8)))),
    ],
)
def test_the_smallest_slice_along_one_dimension_covers_everything_that_is_read(
    boxes: list[tuple[tuple[int, int], ...]], expected: Slice | None
) -> None:
    assert covering((8, 6), boxes) == expected


def test_a_slice_is_one_tensor_and_fits_the_tensors_that_have_its_ranges() -> None:
    part = Slice(1, ((0, 2), (4, 6)))
    assert part.of((3, 8, 5)) == (3, 4, 5) and part.fits((3, 6)) and not part.fits((3, 5)) and not part.fits((9,))
    assert covering((), [((0, 1),)]) is None and covering((0, 4), []) == NOTHING
