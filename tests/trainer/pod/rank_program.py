"""A rank without a model: it meets its peers on gloo, over and over, and does what a file tells it."""

import json
import os
import tempfile
import time
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control
from rljob_trainer import failure
from rljob_trainer.failure import ConfigurationError


def prepare() -> None:
    import torch.distributed  # noqa: F401


def main() -> None:
    import torch.distributed as dist

    rank, directory = int(os.environ["RANK"]), Path(os.environ[names.ENV_ATTEMPT_DIR])
    role = os.environ[names.ENV_ROLE]
    who = str(rank) if role == names.ROLE_TRAINER else f"{role}-{rank}"
    control = Control.model_validate_json((directory / "control.json").read_text())
    root = Path(control.spec.checkpoint.path)
    try:
        dist.init_process_group("gloo")
        print(f"rank {rank} of {dist.get_world_size()} has begun")
        (root / f"pid-{control.attempt}-{who}").write_text(str(os.getpid()))
        result = meet(root, control.attempt, who)
        dist.destroy_process_group()
    except BaseException as error:
        failure.write(directory, rank, error)
        raise
    if os.environ["LOCAL_RANK"] == "0":
        (directory / "outcome.json").write_text(json.dumps({"result": result}))


def meet(root: Path, attempt: int, who: str) -> str:
    """Until one of the ranks has seen that the attempt is over; all agree when."""
    import torch
    import torch.distributed as dist

    while True:
        seen = torch.tensor([(root / f"{word}-{attempt}").exists() for word in ("finish", "drain")], dtype=torch.int32)
        dist.all_reduce(seen)
        if seen.any():
            return "succeeded" if seen[0] else "drained"
        follow(root / f"rank-{who}")
        time.sleep(0.02)


def follow(file: Path) -> None:
    """Once: the next attempt is spared."""
    if not file.exists():
        return
    word = file.read_text()
    file.unlink()
    match word:
        case "raise":
            raise ValueError("the loss is a banana")
        case "configuration":
            raise ConfigurationError("spec.data.train", "/nowhere.parquet", "does not exist", "mount it")
        case "litter":
            tempfile.mkdtemp(prefix="of-a-rank-")
        case "exit":
            print("about to leave", flush=True)
            os._exit(7)
        case "orphan":
            os.system("setsid sleep 600 & echo $! > " + str(file.with_name("orphan")))
