"""`kubectl_complete-rljob`: what kubectl's own shell completion runs for `kubectl rljob ...<TAB>`.

The protocol is cobra's (kubernetes.io/docs/tasks/extend-kubectl, "completion for plugins"): arguments in, the last of
them unfinished; one proposal per line out, with its help after a tab; and last a directive: `:4` keeps file names away.
"""

import sys
from datetime import datetime, timezone

from click.shell_completion import CompletionItem, ShellComplete

from kubectl_rljob.command_line import PROGRAM, root
from kubectl_rljob.options import Session
from kubectl_rljob.terminal import Terminal, visible

NO_FILES = ":4"
FILES = ":0"


def main() -> int:
    items, directive = propose(sys.argv[1:] or [""])
    print("\n".join([*map(_line, items), directive]))
    return 0


def propose(words: list[str]) -> tuple[list[CompletionItem], str]:
    """What may stand in the place of the last word."""
    session = Session(datetime.now(timezone.utc), Terminal())
    shell = ShellComplete(root, {"obj": session}, PROGRAM, "")
    items = shell.get_completions(words[:-1], words[-1])
    files = any(item.type in ("file", "dir") for item in items)
    return ([], FILES) if files else (items, NO_FILES)


def _line(item: CompletionItem) -> str:
    return visible(f"{item.value}\t{item.help}" if item.help else item.value).replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
