"""The directory of an export. Its tensors: test_families."""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rljob_trainer.checkpoint.manifest import ENGINE, CheckpointManifest
from rljob_trainer.commands.export import export_checkpoint
from rljob_trainer.data.tokenizer import stops
from trainer.data.templates import QWEN, tokenizer
from trainer.megatron.models import job, make_batch, make_model, ranks_of, train_step
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


def test_a_directory_is_written_in_shards_that_transformers_reads(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    spec, target = job(model, tensor=2), tmp_path / "exported"

    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        write_hugging_face(Engine(spec, lambda: None), model, target, shard_bytes=200_000)

    run_ranks(ranks_of(spec), on_a_rank)
    files = sorted(f.name for f in target.iterdir())
    assert len([f for f in files if f.endswith(".safetensors")]) > 2
    assert [f for f in files if not f.endswith(".safetensors")] == [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert len({file.stat().st_mode for file in target.iterdir()}) == 1, "who may read one file may read them all"
    tokens = torch.tensor([[1, 2, 3, 4]])
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path)(tokens).logits for path in (target, model))
    assert torch.equal(ours, theirs)


def test_the_dtype_of_a_model_is_that_of_its_weights_and_not_of_the_tensor_that_comes_last(
    megatron: None, tmp_path: Path
) -> None:
    """In a shard of its own, as a bias that chooses experts can be."""
    source, target = tmp_path / "source", tmp_path / "exported"
    source.mkdir()
    (source / "config.json").write_text('{"torch_dtype": "float32"}')

    class Engine:
        heartbeat = staticmethod(lambda: None)

        def export_owned(self) -> Any:
            weight, bias = torch.ones(64, 64, dtype=torch.bfloat16), torch.ones(8)
            return [([("a.weight", weight), ("b.bias", bias)], True, None)]

        def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
            return config

    def on_a_rank() -> None:
        from rljob_trainer.megatron.huggingface import write_hugging_face

        write_hugging_face(Engine(), source, target, shard_bytes=64)

    run_ranks(1, on_a_rank)
    assert json.loads((target / "config.json").read_text()) == {"dtype": "bfloat16"}
    assert load_file(target / "model-00002-of-00002.safetensors")["b.bias"].dtype == torch.float32


def test_no_weight_file_is_opened_for_every_tensor(megatron: None, tmp_path: Path) -> None:
    source = make_model(tmp_path / "source", "qwen3_moe", tied=False, max_shard_size="150KB")
    spec = job(source, trainer={"nodes": 2, "parallelism": {"expert": 2}})

    def on_a_rank() -> list[Path]:
        from rljob_trainer.megatron import weight_files
        from rljob_trainer.megatron.engine import Engine

        opened: list[Path] = []
        original = weight_files.safe_open

        def counted(file: Path, **options: Any) -> Any:
            opened.append(file)
            return original(file, **options)

        weight_files.safe_open = counted
        Engine(spec, lambda: None)
        return opened

    files = sorted(source.glob("*.safetensors"))
    tensors = sum(len(load_file(file)) for file in files)
    assert 5 < len(files) < tensors / 4
    for opened in run_ranks(ranks_of(spec), on_a_rank):
        assert 0 < len(opened) < 2 * len(files), "a layer's files, once each; where it ends, one again"


def test_a_name_is_not_compared_with_all_others(megatron: None, tmp_path: Path) -> None:
    from rljob_trainer.megatron.weight_files import OpenFiles

    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    files = OpenFiles(str(make_model(tmp_path / "source", "qwen3_moe", tied=False)))
    names = files.get_all_keys()
    assert list(names) == sorted(files.key_to_filename_map)
    assert all(Name(name) in names for name in list(names))
    assert Name.compared == len(names) > 50


def test_every_owner_writes_its_own_part(megatron: None, tmp_path: Path) -> None:
    source, target = make_model(tmp_path / "source", "qwen3_moe", tied=False), tmp_path / "exported"
    spec = job(source, trainer={"nodes": 4, "parallelism": {"pipeline": 2, "expert": 2}})

    def on_a_rank() -> dict[str, torch.Tensor]:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        engine = Engine(spec, lambda: None)
        write_hugging_face(engine, source, target)
        return {name: tensor.clone() for name, tensor in engine.export()}

    whole = run_ranks(4, on_a_rank)[0]
    files = sorted(target.glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-{i:05}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    index = json.loads((target / "model.safetensors.index.json").read_text())
    parts = {file.name: load_file(file) for file in files}
    assert index["weight_map"] == {name: file for file, tensors in parts.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    written = {name: tensor for tensors in parts.values() for name, tensor in tensors.items()}
    assert written.keys() == whole.keys() and all(torch.equal(written[name], whole[name]) for name in whole)


def test_an_export_says_its_own_dtype(model: Path, tmp_path: Path) -> None:
    spec, target = job(model, dtype="bfloat16"), tmp_path / "exported"

    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        write_hugging_face(Engine(spec, lambda: None), model, target)

    run_ranks(1, on_a_rank)
    assert json.loads((target / "config.json").read_text())["dtype"] == "bfloat16"
    assert (target / "model.safetensors").is_file()


def test_any_checkpoint_of_a_job_becomes_what_the_job_itself_exports(model: Path, tmp_path: Path) -> None:
    spec, checkpoint = job(model, tensor=2), tmp_path / "global_step_1"

    def on_a_rank() -> None:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.huggingface import write_hugging_face

        engine = Engine(spec, lambda: None)
        train_step(engine, make_batch(model, 1))
        write_hugging_face(engine, model, tmp_path / "own")
        if torch.distributed.get_rank() == 0:
            checkpoint.mkdir()
        torch.distributed.barrier()
        writing = engine.save(checkpoint / ENGINE, alongside=False)
        writing.wait()
        writing.finish()

    run_ranks(ranks_of(spec), on_a_rank)

    def exported(directory: Path) -> int:
        torch.distributed.destroy_process_group()  # the command makes its own
        return export_checkpoint(directory, model, tmp_path / "out", "float32")

    plain = tmp_path / "checkpoint"
    assert run_ranks(1, lambda: exported(checkpoint)) == [1], "it has no manifest"
    assert not (tmp_path / "out").exists()
    checkpoint.rename(plain)
    assert run_ranks(1, lambda: exported(plain)) == [0]
    own, out, before = (load_file(path / "model.safetensors") for path in (tmp_path / "own", tmp_path / "out", model))
    assert own.keys() == out.keys() and all(torch.equal(own[name], out[name]) for name in own)
    assert not all(torch.equal(own[name], before[name]) for name in own), "nothing was learnt"
    assert run_ranks(1, lambda: exported(plain)) == [1], "the directory is there already"
    command = [sys.executable, "-m", "rljob_trainer", "export", "--model", model, "--dtype", "float32"]
    again = subprocess.run([*command, plain, tmp_path / "again"], capture_output=True, text=True)
    assert (again.stdout, again.stderr) == (f"{tmp_path}/again: the Hugging Face model of {plain}\n", "")


def test_an_export_of_a_checkpoint_ends_turns_as_that_of_its_job_does(model: Path, tmp_path: Path) -> None:
    """Of a conversational task: the job's chat template, and the end of a turn that it has taught."""
    chatty, checkpoint, template = tmp_path / "chatty", tmp_path / "global_step_1", tmp_path / "own.jinja"
    shutil.copytree(model, chatty)
    tokenizer(None, "<|im_end|>").save_pretrained(chatty)
    config = json.loads((chatty / "config.json").read_text())
    (chatty / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 64})
    )  # fewer than a job's defaults
    template.write_text(QWEN)
    end = tokenizer(None, "<|im_end|>").convert_tokens_to_ids("<|im_end|>")
    before = stops(chatty)[1]

    def save() -> None:
        from rljob_trainer.megatron.engine import Engine

        checkpoint.mkdir()
        writing = Engine(job(chatty), lambda: None).save(checkpoint / ENGINE, alongside=False)
        writing.wait()
        writing.finish()

    def exported(task: str) -> list[int]:
        chat = {"task": task, "chatTemplate": {"path": str(template)}}
        manifest = {"step": 1, "seq": 1, "attempt": 1, "job_uid": "job", "parent": None, "model": "m", "time": 0.0}
        contents = {"layout": "tp1-pp1-dp1", "digest": "", "data": {}, "files": {}}
        CheckpointManifest(**manifest, **contents, chat=chat).write(checkpoint)
        torch.distributed.destroy_process_group()  # the command makes its own
        assert export_checkpoint(checkpoint, chatty, tmp_path / task, "float32") == 0
        assert (tmp_path / task / "chat_template.jinja").read_text() == QWEN
        return stops(tmp_path / task)[1]

    run_ranks(1, save)
    assert end not in before
    assert run_ranks(1, lambda: exported("sft")) == [[end, *before]]
    assert run_ranks(1, lambda: exported("pretrain")) == [before]
    assert run_ranks(1, lambda: exported("rl")) == [before]


def test_an_export_leaves_what_somebody_has_next_to_it_or_puts_in_its_place(model: Path, tmp_path: Path) -> None:
    checkpoint, backup, out, taken = (tmp_path / name for name in ("checkpoint", "out.old", "out", "taken"))
    checkpoint.mkdir()

    def save() -> None:
        from rljob_trainer.megatron.engine import Engine

        writing = Engine(job(model), lambda: None).save(checkpoint / ENGINE, alongside=False)
        writing.wait()
        writing.finish()

    def exported(target: Path) -> int:
        torch.distributed.destroy_process_group()  # the command makes its own
        return export_checkpoint(checkpoint, model, target, "float32")

    def exported_to_taken() -> int:
        threading.Thread(target=take, args=(taken,)).start()
        return exported(taken)

    def exported_of_half_a_model() -> int:
        torch.distributed.destroy_process_group()
        return export_checkpoint(checkpoint, half, tmp_path / "of-half", "float32")

    half = Path(shutil.copytree(model, tmp_path / "half"))
    tensors = load_file(half / "model.safetensors")
    save_file(dict(list(tensors.items())[1:]), half / "model.safetensors", {"format": "pt"})
    run_ranks(1, save)
    assert run_ranks(1, exported_of_half_a_model) == [1] and not (tmp_path / "of-half").exists()
    put(backup)
    assert run_ranks(1, lambda: exported(out)) == [0] and (out / "model.safetensors").is_file()
    assert run_ranks(1, exported_to_taken) == [1]
    assert [[f.name for f in d.iterdir()] for d in (backup, taken)] == [["somebody's"]] * 2


def take(directory: Path) -> None:
    """Make it somebody's as soon as an export to it has begun."""
    while not list(directory.parent.glob(f".{directory.name}.tmp-*")):
        time.sleep(0.001)
    put(directory)


def put(directory: Path) -> None:
    directory.mkdir()
    (directory / "somebody's").touch()
