"""`kubectl_complete-rljob`: what kubectl's own shell completion runs for `kubectl rljob ...<TAB>`.

The protocol is cobra's (kubernetes.io/docs/tasks/extend-kubectl, "completion for plugins"): arguments in, the last of them unfinished; one
proposal per line out, and last `:4`, which keeps file names away.
"""

import argparse
import sys

from kubectl_rljob import parser
from kubectl_rljob.cluster import Cluster
from kubectl_rljob.errors import UserError

NO_FILES = ":4"
FILES = ":0"


def main() -> int:
    words = sys.argv[1:] or [""]
    proposals, directive = propose(words)
    print("\n".join([*(p for p in proposals if p.startswith(words[-1])), directive]))
    return 0


def propose(words: list[str]) -> tuple[list[str], str]:
    """All that may stand in the place of the last word."""
    root, parsers = parser.build()
    verb = next((w for w in words[:-1] if w in parsers), None)
    actions = (parsers[verb] if verb else root)._actions
    before = next((a for a in actions if len(words) > 1 and words[-2] in a.option_strings), None)
    if before is not None and before.nargs != 0:
        return list(before.choices or ()), FILES if before.metavar == "FILE" else NO_FILES
    if words[-1].startswith("-"):
        return sorted(flag for a in actions for flag in a.option_strings if flag.startswith("--")), NO_FILES
    if verb is None:
        return list(parsers), NO_FILES
    first = next((a for a in actions if not a.option_strings), None)
    if first is None or words[-2] != verb:
        return [], NO_FILES
    return (_jobs(words) if first.metavar == "NAME" else list(first.choices or ())), NO_FILES


def _jobs(words: list[str]) -> list[str]:
    """Names in the namespace that the flags choose; nothing when there is no cluster, since a prompt is no place for errors."""
    flags, _ = parser.global_flags().parse_known_args(words[:-1], argparse.Namespace(**parser.GLOBAL_DEFAULTS))
    try:
        cluster = Cluster.connect(flags.kubeconfig, flags.context, flags.namespace)
        return [job.name for job in cluster.jobs(all_namespaces=False)]
    except UserError:
        return []


if __name__ == "__main__":
    sys.exit(main())
