"""Which ranks export a policy, over random layouts and sizes of pods."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.megatron.ownership import Coordinates, Ownership, everywhere, ownership

SIZES = st.sampled_from([1, 2, 3, 4])


def places(tensor: int, data: int, stages: int, expert_tensor: int, expert: int, pod: int) -> list[Coordinates]:
    """[rank], in the order of megatron-core: tensor, data, pipeline; of experts: tensor, expert, data, pipeline."""
    of_stage, of_experts = tensor * data, expert_tensor * expert
    return [
        Coordinates(
            rank - rank % pod,
            rank // of_stage,
            rank % tensor,
            rank % of_stage // tensor,
            rank % expert_tensor,
            rank % of_experts // expert_tensor,
            rank % of_stage // of_experts,
        )
        for rank in range(of_stage * stages)
    ]


@st.composite
def layouts(draw: st.DrawFn) -> list[Coordinates]:
    tensor, data, stages = draw(SIZES), draw(SIZES), draw(SIZES)
    divisors = [n for n in range(1, tensor * data + 1) if tensor * data % n == 0]
    expert_tensor = draw(st.sampled_from(divisors))
    expert = draw(st.sampled_from([n for n in divisors if tensor * data // expert_tensor % n == 0]))
    world = tensor * data * stages
    pod = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    return places(tensor, data, stages, expert_tensor, expert, pod)


def parts_elsewhere(found: list[Coordinates]) -> set[tuple[int, int]]:
    """(pod, stage) without a rank of the stage, or whose first rank is of a copy, or of a group of experts, that another pod has ranks of."""
    lacking = set()
    for pod, stage in product({c.home for c in found}, {c.stage for c in found}):
        of_stage = [c for c in found if c.stage == stage]
        first = next((c for c in of_stage if c.home == pod), None)
        together = [c for c in of_stage if first and (c.data == first.data or c.expert_data == first.expert_data)]
        if not first or any(c.home != pod for c in together):
            lacking.add((pod, stage))
    return lacking


@given(layouts())
def test_each_pod_has_one_owner_of_every_part_and_all_who_gather_it_or_no_pod_has(found: list[Coordinates]) -> None:
    owners = ownership(found)
    assert (owners is None) == bool(parts_elsewhere(found))
    if owners is None:
        return
    ranks = list(zip(found, owners, strict=True))
    experts = {(p.stage, p.expert) for p in found}
    for home, stage in product({p.home for p in found}, {p.stage for p in found}):
        own = [(p, o) for p, o in ranks if (p.home, p.stage) == (home, stage)]
        assert sum(o.owns for _, o in own) == 1
        assert {p.tensor for p, o in own if o.gathers} == {p.tensor for p in found}
        assert sorted(p.expert for p, o in own if o.owns_experts) == sorted(e for s, e in experts if s == stage)
        gathering = sorted((p.expert, p.expert_tensor) for p, o in own if o.gathers_experts)
        assert gathering == sorted({(p.expert, p.expert_tensor) for p in found})
        assert all(o.gathers_experts for _, o in own if o.owns), "an owner lacks experts that are in one tensor"


@given(layouts())
def test_where_all_ranks_are_in_one_pod_the_first_copy_is_exported(found: list[Coordinates]) -> None:
    together = [p._replace(home=0) for p in found]
    assert ownership(together) == [everywhere(p) for p in together]


def test_a_pod_that_lacks_ranks_of_its_copy_cannot_export_one() -> None:
    assert ownership(places(2, 1, 1, 1, 1, pod=1)) is None, "tensor parallelism over pods"
    assert ownership(places(1, 2, 2, 1, 1, pod=2)) is None, "another pod has the second stage"
    assert ownership(places(1, 4, 1, 1, 4, pod=2)) is None, "another pod has the third expert"
    assert (
        ownership(places(1, 4, 1, 1, 2, pod=2))
        == [Ownership(True, True, True, True), Ownership(False, True, False, True)] * 2
    )
