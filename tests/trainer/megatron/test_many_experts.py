"""What a save and a load cost for a rank with many experts."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rljob_api.spec import RLJobSpec
from trainer.megatron.kinds import make_config
from trainer.megatron.models import job, make_batch, random_model, train_step
from trainer.megatron.test_checkpoint import write
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

EXPERTS = (12, 24, 48)
"""Of a layer: fewer than a row of a matrix has numbers, as in every real model."""


def test_work_of_a_save_and_of_a_load_grows_as_experts_do(megatron: None, tmp_path: Path) -> None:
    """As many steps for each further expert, however many there are: none is compared with all others."""
    models = {count: model_of(tmp_path / f"{count}", count) for count in EXPERTS}
    found = [run_ranks(1, lambda c=count: steps_of(models[c], tmp_path / f"saved-{c}"))[0] for count in EXPERTS]
    for what in ("save", "load"):
        few, more, most = (steps[what] for steps in found)
        assert (most - more) / (EXPERTS[2] - EXPERTS[1]) < 1.1 * (more - few) / (EXPERTS[1] - EXPERTS[0]), what


def test_ranks_do_not_tell_each_other_what_each_holds_alone(megatron: None, tmp_path: Path) -> None:
    """Only rank 0 gets the plans of all."""
    sent = {}
    for count in EXPERTS[:2]:
        spec = job(model_of(tmp_path / f"{count}", count), trainer={"nodes": 2, "parallelism": {"expert": 2}})
        sent[count] = run_ranks(2, lambda s=spec, c=count: sent_to_all(s, tmp_path / f"saved-{c}"))
    assert sent[EXPERTS[0]] == pytest.approx(sent[EXPERTS[1]], abs=100)


def sent_to_all(spec: RLJobSpec, directory: Path) -> int:
    """Bytes of the objects that this rank sends to every rank for a save and a load."""
    from rljob_trainer.megatron.engine import Engine

    engine, sent = Engine(spec, lambda: None), 0
    gather = dist.all_gather_object

    def counted(found: list[Any], own: Any, *args: Any, **options: Any) -> None:
        nonlocal sent
        sent += len(pickle.dumps(own))
        gather(found, own, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather_object", counted)
        write(engine, directory)
        engine.load(directory)
    assert sent > 0
    return sent


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_save_that_would_lack_a_tensor_or_a_part_of_it_is_refused(
    megatron: None, model: Path, tmp_path: Path, tensor: int
) -> None:
    """With tensor parallelism the other rank's part is written."""

    def forget(weights: dict[str, Any]) -> None:
        if dist.get_rank() == tensor - 1:
            weights["embedding.word_embeddings.weight"].replica_id = 1

    refused = refusal(job(model, tensor), tensor, forget, tmp_path)
    whole = "no rank writes policy.embedding.word_embeddings.weight"
    assert refused == whole if tensor == 1 else "policy.embedding.word_embeddings.weight invalid fill" in refused, (
        refused
    )


def test_a_save_in_which_two_ranks_write_the_same_tensor_is_refused(
    megatron: None, model: Path, tmp_path: Path
) -> None:
    """torch keeps one of the two, whichever answers last."""

    def write_too(weights: dict[str, Any]) -> None:
        weights["decoder.final_layernorm.weight"].replica_id = 0

    refused = refusal(job(model, trainer={"nodes": 2}), 2, write_too, tmp_path)
    assert refused == "two ranks write policy.decoder.final_layernorm.weight"


def refusal(spec: RLJobSpec, ranks: int, change: Callable[[dict[str, Any]], None], directory: Path) -> str:
    """What rank 0 says of a save with weights that `change` has changed on each rank, once it is settled who writes which."""

    def on_a_rank() -> str:
        from rljob_trainer.megatron import checkpoint
        from rljob_trainer.megatron.engine import Engine

        engine, share_out = Engine(spec, lambda: None), checkpoint._share_out

        def changed(parts: dict[int, Any]) -> None:
            share_out(parts)
            change(parts[0])

        checkpoint._share_out = changed
        try:
            engine.save(directory / "saved", False)
        except Exception as error:
            return str(error)
        return ""

    return run_ranks(ranks, on_a_rank)[0]


def model_of(directory: Path, experts: int) -> Path:
    config = make_config("qwen3_moe", 160, tied=False, num_hidden_layers=2)
    config.num_experts, config.moe_intermediate_size = experts, 8
    random_model(config, seed=0).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def steps_of(model: Path, directory: Path) -> dict[str, int]:
    from rljob_trainer.megatron.engine import Engine

    engine = Engine(job(model), lambda: None)
    train_step(engine, make_batch(model))
    write(engine, directory / "first")
    engine.load(directory / "first")
    saved = steps_taken(lambda: write(engine, directory / "second"))
    return {"save": saved, "load": steps_taken(lambda: engine.load(directory / "second"))}


def steps_taken(work: Callable[[], Any]) -> int:
    """Functions that Python begins, and turns that its loops take, in all threads."""
    count, events = 0, sys.monitoring.events

    def step(*_: Any) -> None:
        nonlocal count
        count += 1

    kinds = (events.PY_START, events.JUMP)
    sys.monitoring.use_tool_id(sys.monitoring.PROFILER_ID, "steps")
    for kind in kinds:
        sys.monitoring.register_callback(sys.monitoring.PROFILER_ID, kind, step)
    sys.monitoring.set_events(sys.monitoring.PROFILER_ID, events.PY_START | events.JUMP)
    try:
        work()
    finally:
        sys.monitoring.free_tool_id(sys.monitoring.PROFILER_ID)
    return count
