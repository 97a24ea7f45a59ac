"""Run vLLM's own API server, or with `--headless` the workers of another pod's: `python -m rljob_trainer.server.server <arguments of vllm serve>`.

None of its processes outlives the one that started it, however that ends: a surviving engine would keep its GPU.
"""

import os
import sys

import uvloop
from vllm.entrypoints.launchers.api_server.entry import run_server
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from rljob_trainer.patches import UNSUPPORTED_VERSION, UnsupportedVersionError
from rljob_trainer.processes import die_with_parent
from rljob_trainer.server import compat, readiness
from rljob_trainer.server.follower import follow


def main(arguments: list[str]) -> None:
    """Serves, or follows, until SIGTERM."""
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    try:
        compat.install()
    except UnsupportedVersionError as error:
        print(error, file=sys.stderr)
        sys.exit(UNSUPPORTED_VERSION)
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    validate_parsed_serve_args(parsed)
    if parsed.headless:
        follow(parsed)
    if parsed.data_parallel_size_local not in (None, parsed.data_parallel_size):
        readiness.listen(parsed.port, (parsed.data_parallel_address, parsed.master_port))
    uvloop.run(run_server(parsed))


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # a process that vLLM spawned
    die_with_parent()
