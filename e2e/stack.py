"""Cluster, images and operator, brought up once: what the demo and the end-to-end tests stand on. `python -m e2e.stack` is `make cluster-up`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.steps import StepFailed
from e2e.kube import CommandFailed, Kube
from e2e.providers import Provider, Unavailable, choose, shell_lines

ROOT = Path(__file__).parents[1]
OPERATOR_NAMESPACE = "rljob-system"


def up(say: Callable[[str], None] = print) -> Provider:
    """Idempotent; every step says what it does and how long it took."""
    provider = choose()
    for what, step in (
        (f"cluster ({provider.name})", provider.up),
        ("images", provider.build_images),
        ("operator", lambda: install_operator(provider)),
    ):
        start = time.monotonic()
        say(f"{what}: ...")
        step()
        say(f"{what}: ready after {time.monotonic() - start:.0f} s")
    return provider


def kube(provider: Provider, namespace: str = "default") -> Kube:
    return Kube(provider.kubeconfig, namespace, provider.tools)


def install_operator(provider: Provider, *values: str) -> None:
    """The chart with these `values`, and the image that was just built; status is refreshed every 2 s because the example's steps take one."""
    repository, _, tag = provider.operator_image.rpartition(":")
    strings = (f"image.repository={repository}", f"image.tag={tag}")
    sets = [argument for value in strings for argument in ("--set-string", value)]
    sets += [argument for value in ("progressIntervalSeconds=2", *values) for argument in ("--set", value)]
    command = (
        "helm",
        "upgrade",
        "--install",
        "rljob",
        str(ROOT / "charts" / "rljob"),
        "-n",
        OPERATOR_NAMESPACE,
        "--create-namespace",
    )
    kube(provider).run(*command, *sets, "--wait", "--timeout", "180s", timeout=240)


def main() -> int:
    try:
        provider = up(lambda line: print(line, file=sys.stderr, flush=True))
    except (Unavailable, StepFailed, CommandFailed) as failure:
        print(failure, file=sys.stderr)
        return 1
    print(shell_lines(provider))
    return 0


if __name__ == "__main__":
    sys.exit(main())
