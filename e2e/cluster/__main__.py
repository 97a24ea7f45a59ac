"""A real Kubernetes on this machine, without Docker: control plane and nodes in namespaces of their own.

Everything lies under $RLJOB_CACHE (default ~/.cache/rljob) and runs as root; nothing of it is reachable from outside.
"""

import argparse
import sys

from e2e.cluster.built_images import SOURCES, build_images, load_images
from e2e.cluster.lifecycle import down, purge, start_node, stop_node, up
from e2e.cluster.steps import BIN, KUBECONFIG, StepFailed, say


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    bring_up = command("up", "build what changed, and bring up what is not")
    bring_up.add_argument("--nodes", type=int, default=2)
    bring_up.add_argument("--images", nargs="*", default=list(SOURCES), metavar="|".join(SOURCES))
    command("down", "end the cluster and check that nothing is left; compiled and built things stay cached")
    command("purge", "down, and remove the cache too")
    build = command("build", "build the project's images if their sources changed, and print their names")
    build.add_argument("images", nargs="*", default=list(SOURCES), metavar="|".join(SOURCES))
    command("load", "bring built images to all nodes").add_argument("images", nargs="+")
    command("env", "print the shell lines that point kubectl and helm at the cluster")
    stop = command("stop-node", "break a node: its kubelet, its power, its network cable, or all its processes stop")
    stop.add_argument("number", type=int)
    stop.add_argument("how", choices=("kubelet", "power", "unplug", "pause"))
    command("start-node", "start a node, or mend what stop-node broke").add_argument("number", type=int)
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    match arguments.command:
        case "up":
            up(arguments.nodes, arguments.images)
            say("cluster up: eval the output of `cluster env` to use it")
        case "down":
            down()
        case "purge":
            purge()
        case "build":
            print("\n".join(build_images(arguments.images)))
        case "load":
            load_images(arguments.images)
        case "env":
            print(f"export KUBECONFIG={KUBECONFIG}\nexport PATH={BIN}:$PATH")
        case "stop-node":
            stop_node(arguments.number, arguments.how)
        case "start-node":
            start_node(arguments.number)


if __name__ == "__main__":
    try:
        run(parse_arguments())
    except StepFailed as failure:
        say(f"error: {failure}")
        sys.exit(1)
