"""What all of Trinity's tasks say alike: model, name, directory, files, trackers."""

from collections.abc import Iterator, Mapping

from kubectl_rljob.importer import places
from kubectl_rljob.importer.adapters import ALL, WHERE_PROVEN
from kubectl_rljob.importer.settings import Settings, integer, show
from kubectl_rljob.importer.table import Problem, Said
from kubectl_rljob.importer.unfit import refused
from kubectl_rljob.importer.values import place

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")


def run(settings: Settings) -> Iterator[Said]:
    if settings["model.model_path"]:
        yield from places.found(settings, "model.path", "model.model_path")
    else:
        yield Problem("model.model_path", "is missing; if a variable says it: --env NAME=VALUE")
    yield from places.name(settings, "name")
    directory = f"{settings['checkpoint_root_dir'] or 'checkpoints'}/{settings['project']}/{settings['name']}"
    yield from places.placed(settings, "checkpoint.path", directory, "checkpoint_root_dir", "project", "name")
    yield from places.kept(settings, "trainer.max_checkpoints_to_keep")
    if settings["monitor.monitor_type"] == "wandb":
        env = [{"name": "WANDB_PROJECT", "value": str(settings["project"])}]
        yield settings.field("env", env, "monitor.monitor_type", "project")
    elif settings["monitor.monitor_type"] not in (None, "tensorboard"):
        yield settings.lacking("monitor.monitor_type", "metrics are written to TensorBoard and metrics.jsonl")


def tuning(settings: Settings) -> Iterator[Said]:
    """Of the adapters the first ones, which Trinity trains."""
    key = "model.lora_configs"
    given = settings[key]
    if not given:
        return
    first = given[0] if isinstance(given, list) else None
    if not isinstance(first, Mapping):
        yield refused(key, given)
        return
    for name, field in (("lora_rank", "rank"), ("lora_alpha", "alpha")):
        yield settings.field(f"model.lora.{field}", integer(key, first.get(name, 32)), key)
    if first.get("path"):
        yield settings.field("model.lora.path", place(first["path"], settings.options.root), key)
    targets = first.get("target_modules", ALL[1])
    if targets in ALL:
        yield settings.changed(key, WHERE_PROVEN)
    else:
        yield settings.lacking(key, f"target_modules {show(targets)}: name them in model.lora.targets")
    if given[1:] or first.get("exclude_modules"):
        yield settings.lacking(key, "one set of adapters is trained, next to every target")


def files(settings: Settings, prefix: str) -> Iterator[Said]:
    """The training data: a file, or a data set of a hub or in a directory, whose files have to be put on the volume."""
    path = settings[f"{prefix}path"]
    if not path:
        yield Problem(f"{prefix}path", "is missing; if a variable says it: --env NAME=VALUE")
        return
    if not str(path).endswith(SUFFIXES):
        file = f"{settings[f'{prefix}split']}.parquet"
        yield settings.changed(
            f"{prefix}path", f"a data set in a directory or on a hub: put its files in place of {file}"
        )
        path = f"{str(path).rstrip('/')}/{file}"
    yield from places.placed_files(settings, "data.train", [path], f"{prefix}path")
