"""`python -m rljob_trainer export`: the policy of a checkpoint as a Hugging Face directory, by one process, on the CPU."""

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rljob_api import names
from rljob_api.callbacks import nothing
from rljob_api.sizing.layout import Layout
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.exports import began_from
from rljob_trainer.checkpoint.files import give_name, make_directory, sync
from rljob_trainer.checkpoint.manifest import read_manifest
from rljob_trainer.data.tokenizer import add_chat_files
from rljob_trainer.failure import ConfigurationError

SECONDS = 3600.0
"""Timeout of collectives, which with a single process are immediate."""


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """For what imports and calls them: no warnings, of logs only errors, and nothing on standard output. A bug still shows what was printed there."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its logger has a level and a handler of its own
    root, printed = logging.getLogger(), io.StringIO()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(printed):
            warnings.simplefilter("ignore")
            yield
    except (ConfigurationError, OSError):
        raise
    except Exception:
        sys.stderr.write(printed.getvalue())
        raise
    finally:
        root.setLevel(level)


def export_checkpoint(checkpoint: Path, model: Path, out: Path, dtype: str) -> int:
    """Export the policy of a checkpoint. Needs memory for the whole model.

    `model`: the directory that the job started from. `dtype`: the job's `model.dtype`.

    Returns the exit code: 0 when `out` is complete; otherwise 1, after printing the cause, and without `out`.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is imported: GPUs of this machine may be in use
    try:
        model = began_from(model, checkpoint.absolute().parent)
        _require(checkpoint, model, out)
        spec = _spec(checkpoint, model, dtype)
        scratch = out.with_name(f".{out.name}.tmp-{os.getpid()}")
        with quiet_libraries():
            _write(spec, model, scratch)
            add_chat_files(spec, scratch)
        sync(scratch)
        give_name(scratch, out)
    except (ConfigurationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{out}: the Hugging Face model of {checkpoint}")
    return 0


def _require(checkpoint: Path, model: Path, out: Path) -> None:
    if checkpoint.name.startswith("global_step_") and read_manifest(checkpoint, "CHECKPOINT") is None:
        fix = "name a directory global_step_N that has its manifest.json"
        raise ConfigurationError("CHECKPOINT", checkpoint, "is no complete checkpoint", fix)
    if not (model / "config.json").is_file():
        raise ConfigurationError("--model", model, "holds no config.json", "name the job's spec.model.path")
    if out.exists():
        raise ConfigurationError("OUT", out, "exists already", "name a new directory, or delete it")
    make_directory(out.parent)


def _spec(checkpoint: Path, model: Path, dtype: str) -> RLJobSpec:
    """A minimal spec, with which the model can be loaded; of a job's checkpoint with the task and the chat template that its policy learnt from."""
    manifest = read_manifest(checkpoint, "CHECKPOINT")
    chat = manifest.chat if manifest else {}
    template = {"chatTemplate": chat["chatTemplate"]} if chat else {}
    return RLJobSpec.model_validate(
        {
            "task": chat.get("task", "pretrain"),
            "model": {"path": str(model.resolve()), "megatronCheckpoint": str(checkpoint.resolve()), "dtype": dtype},
            "data": {"train": ["/dev/null"], "maxPromptTokens": 1, **template},
            "rollout": {"sampling": {"maxTokens": 1}},  # nothing is generated: the model may have few positions
            "train": {"steps": 1},
            "trainer": {"device": "cpu"},
            "checkpoint": {"path": str(checkpoint.resolve().parent)},
            "image": "none",
        }
    )


def _write(spec: RLJobSpec, model: Path, scratch: Path) -> None:
    import torch
    import torch.distributed as dist

    from rljob_trainer.megatron import compat

    compat.install()
    from rljob_trainer.megatron import parallel_state
    from rljob_trainer.megatron.huggingface import write_hugging_face
    from rljob_trainer.megatron.model import PolicyModel, require_all_weights

    with TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        parallel = parallel_state.initialize(Layout.of(spec, names.ROLE_TRAINER), torch.device("cpu"), SECONDS)
        policy = PolicyModel(spec, parallel)
        require_all_weights(
            policy.bridge, policy.modules, "--model", str(model)
        )  # an export has the tensors that it has
        write_hugging_face(_ExportableModel(policy), model, scratch)
        dist.destroy_process_group()


class _ExportableModel:
    """Adapts a model in one process to megatron.huggingface.Exporting."""

    def __init__(self, model: Any) -> None:
        self._model, self.heartbeat = model, nothing

    def export_owned(self) -> list[Any]:
        phases: list[Any] = self._model.export_owned()
        return phases

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return self._model.hugging_face_config(config)
