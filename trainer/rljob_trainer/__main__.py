"""`python -m rljob_trainer COMMAND`: what containers, and people without a cluster, start."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rljob_api import names
from rljob_trainer.conversion.options import add_sets
from rljob_trainer.pod.settings import DRIVER, RANK, Settings

if TYPE_CHECKING:
    from rljob_trainer.pod.channel import Channel

PROGRAM = "python -m rljob_trainer"
PLUGIN = "manifests are checked and converted by another program: kubectl-rljob plan, kubectl-rljob import"


class Parser(argparse.ArgumentParser):
    """Names the other program where somebody asks this one for a command of it."""

    def error(self, message: str) -> NoReturn:
        super().error(f"{message}; {PLUGIN}" if message.startswith("argument COMMAND: invalid choice") else message)


def main(arguments: Sequence[str] | None = None) -> int:
    # PID 1 has no default: until a command has a handler of its own, a deleted pod would linger
    signal.signal(signal.SIGTERM, _leave)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    options = parser().parse_args(arguments)
    return int(options.command(options))


def _leave(*_: object) -> None:
    sys.exit(0)


def parser() -> argparse.ArgumentParser:
    what = "Run an RLJob on this machine, look at it, and start the processes of its pods."
    root: argparse.ArgumentParser = Parser(PROGRAM, description=what, epilog=PLUGIN.capitalize())
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    add_commands(commands)
    _add_pods(commands)
    return root


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Those that people start."""
    run = _command(commands, "run", run_here, "run a whole job on this machine, without Kubernetes")
    _add_job(run)
    run.add_argument(
        "--work", type=Path, metavar="DIR", help="for files that only the run itself needs (a new temporary one)"
    )
    run.add_argument(
        "--port",
        type=int,
        default=names.GATEWAY_PORT,
        help="port on loopback at which task service serves; 0: any (%(default)s)",
    )
    tried = _command(
        commands, "try", try_here, "show what a job's data, rewards and agent do, in seconds and without its model"
    )
    _add_job(tried)
    tried.add_argument("--rows", type=int, default=2, metavar="N", help="rows to show of each file (%(default)s)")
    tried.add_argument("--all", action="store_true", help="read every row, not only the first ones of each file")
    tried.add_argument(
        "--response",
        action="append",
        default=[],
        metavar="TEXT",
        help="what a policy that is right says, with {answer} for the row's answer; repeated, one turn after another of an agent's",
    )
    tried.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(%(default)s)")
    _add_runs(_command(commands, "view", view_runs, "show curves and samples of a run in a browser on this machine"))
    add_sets(_command(commands, "data", convert_data, "write a well-known data set in the columns that an RLJob reads"))
    export = _command(commands, "export", export_model, "write a checkpoint's policy as a Hugging Face directory")
    export.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a directory global_step_N of a job")
    export.add_argument("out", type=Path, metavar="OUT", help="a new directory")
    export.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        required=True,
        help="spec.model.path of the job: configuration and tokenizer",
    )
    export.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="spec.model.dtype of the job (%(default)s)"
    )
    fetch = _command(commands, "fetch", fetch_source, "copy a model or data set from a hub, an object store or the web")
    fetch.add_argument("source", metavar="SOURCE", help="for example hf://ORG/MODEL@REVISION or s3://BUCKET/PREFIX")
    fetch.add_argument("path", type=Path, metavar="DIR", help="a directory of its own")
    fetch.add_argument(
        "--files", action="append", default=[], metavar="PATTERN", help="copy only such files; !PATTERN leaves some out"
    )
    _command(
        commands,
        "doctor",
        doctor,
        "say which versions and kernels this environment has, and whether its limits suffice for NCCL",
    )


def _add_pods(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """What containers start."""
    launch = _command(commands, "launch", launch_pod, "PID 1 of a trainer pod")
    launch.add_argument("--rank", metavar="MODULE", default=RANK, help=argparse.SUPPRESS)
    launch.add_argument("--driver", metavar="MODULE", default=DRIVER, help=argparse.SUPPRESS)
    rollout = _command(commands, "rollout", rollout_pod, "PID 1 of a rollout pod")
    rollout.add_argument("--port", type=int, default=names.ROLLOUT_PORT, help="port of the server (%(default)s)")
    pool = _command(commands, "pool", pool_pod, "PID 1 of a pod of spec.pools")
    pool.add_argument("name", metavar="NAME", help="the pool's name")
    pool.add_argument("--port", type=int, default=names.ROLLOUT_PORT, help="port of the server (%(default)s)")
    worker = _command(commands, "worker", worker_pod, "PID 1 of a pod that runs an agent or a reward function")
    worker.add_argument("role", metavar="ROLE", help="worker for the agent, or scorer and the place in spec.rewards")
    worker.add_argument("--port", type=int, default=names.ROLLOUT_PORT, help="port of its probe (%(default)s)")
    gateway = _command(
        commands, "gateway", gateway_pod, "PID 1 of a pod that serves the clients of a service (task: service)"
    )
    gateway.add_argument("--port", type=int, default=names.GATEWAY_PORT, help="port for clients (%(default)s)")
    gateway.add_argument(
        "--work-port",
        type=int,
        default=names.GATEWAY_WORK_PORT,
        metavar="PORT",
        help="port for the driver (%(default)s)",
    )
    gateway.add_argument(
        "--everywhere", action="store_true", help="with --channel: listen on all addresses, not on loopback alone"
    )
    sandbox = _command(commands, "sandbox", bring_helper, "put what runs programs into the pod of an environment")
    sandbox.add_argument("directory", type=Path, metavar="DIR", help="of the pod's volume for it")
    for pod in (launch, rollout, pool, worker, gateway):
        pod.add_argument("--channel", type=Path, metavar="DIR", help="files in place of Kubernetes, as `run` uses them")


def _add_job(command: argparse.ArgumentParser) -> None:
    """The job, and how this machine has it."""
    command.add_argument("manifest", type=Path, help="an RLJob in YAML")
    command.add_argument(
        "--mount", action="append", default=[], metavar="/PATH=DIR", help="where a path of the spec is here"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="put a YAML value into the spec, for example train.steps=500",
    )


def _add_runs(command: argparse.ArgumentParser) -> None:
    """What is looked at, and where."""
    command.add_argument("run", type=Path, metavar="RUN_DIR", help="spec.checkpoint.path of a job")
    command.add_argument("--compare", type=Path, metavar="DIR", help="another run, next to it")
    command.add_argument("--port", type=int, default=names.VIEW_PORT, help="port on loopback; 0: any (%(default)s)")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, do: object, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(command=do)
    return command


def launch_pod(options: argparse.Namespace) -> int:
    from rljob_trainer.pod.fork_client import ForkServers

    settings = Settings.of(os.environ, options.rank, options.driver)
    fork_servers = ForkServers(settings.rank, settings.driver, settings.environment)

    async def run() -> None:
        # before our own imports, which take less long
        await fork_servers.warm(driver=settings.pod.endswith(f"-{names.ROLE_TRAINER}-0"))
        from rljob_trainer.pod.launcher import Launcher

        await Launcher(_channel(options), settings, fork_servers).run()

    asyncio.run(run())
    return 0


def rollout_pod(options: argparse.Namespace) -> int:
    return _serve(options, names.ROLE_ROLLOUT)


def pool_pod(options: argparse.Namespace) -> int:
    return _serve(options, options.name)


def worker_pod(options: argparse.Namespace) -> int:
    from rljob_trainer.pod import worker

    async def run() -> int:
        return await worker.main(_channel(options), os.environ, options.role, options.port)

    return asyncio.run(run())


def bring_helper(options: argparse.Namespace) -> int:
    from rljob_trainer.sandboxes.helper import bring

    bring(options.directory)
    return 0


def _serve(options: argparse.Namespace, role: str) -> int:
    from rljob_trainer.pod import supervisor

    async def run() -> int:
        return await supervisor.main(_channel(options), os.environ, options.port, role)

    return asyncio.run(run())


def gateway_pod(options: argparse.Namespace) -> int:
    """With --channel, the process itself, which PID 1 starts so."""
    if options.channel:
        from rljob_trainer.gateway.main import run
        from rljob_trainer.machine import loopback

        token = os.environ[names.ENV_ROLLOUT_TOKEN]
        address = None if options.everywhere else loopback()
        return asyncio.run(run(options.channel, token, address, options.port, options.work_port))

    from rljob_trainer.pod import gateway

    async def run_pod() -> int:
        return await gateway.main(_channel(options), os.environ, options.port, options.work_port)

    return asyncio.run(run_pod())


def run_here(options: argparse.Namespace) -> int:
    from rljob_trainer.local.run import run

    return run(options.manifest, options.mount, options.work, settings=options.set, port=options.port)


def try_here(options: argparse.Namespace) -> int:
    # transformers imports torch when it finds it: five seconds for a tokenizer that does not need it
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from rljob_trainer.local.rehearsal.command import quiet, rehearse

    quiet()
    automatic = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    colour = automatic if options.color == "auto" else options.color == "always"
    try:
        code = rehearse(
            options.manifest,
            options.mount,
            options.set,
            options.rows,
            options.response,
            everything=options.all,
            colour=colour,
        )
        sys.stdout.flush()
    except (
        BrokenPipeError
    ):  # `| head` has seen enough; the interpreter's own flush at exit has nobody to write to either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def view_runs(options: argparse.Namespace) -> int:
    from rljob_trainer.viewer.server import view

    return view([options.run, *([options.compare] if options.compare else [])], options.port)


def convert_data(options: argparse.Namespace) -> int:
    from rljob_trainer.conversion.command import convert

    return convert(options)


def export_model(options: argparse.Namespace) -> int:
    from rljob_trainer.commands.export import export_checkpoint

    return export_checkpoint(options.checkpoint, options.model, options.out, options.dtype)


def fetch_source(options: argparse.Namespace) -> int:
    from rljob_trainer.sources.process import fetch_here

    return fetch_here(options.source, options.path, options.files)


def doctor(_: argparse.Namespace) -> int:
    from rljob_trainer.commands.doctor import describe

    print(describe())
    return 0


def _channel(options: argparse.Namespace) -> "Channel":
    """Made inside the event loop, as the Kubernetes client wants it."""
    if options.channel:
        from rljob_trainer.pod.channel import FileChannel

        return FileChannel(options.channel)
    from rljob_trainer.pod.kubernetes import in_cluster

    return in_cluster(os.environ[names.ENV_NAMESPACE], os.environ[names.ENV_JOB], os.environ[names.ENV_POD_NAME])


if __name__ == "__main__":
    sys.exit(main())
