"""A server of the page for tests, and runs that it shows."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_trainer.viewer.server import RunFiles, serving

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def make_run(root: Path, steps: int = 4) -> Path:
    """Metrics, and two samples of the last step, of which the worse one comes first and says EVIL wherever a text may stand."""
    file = names.samples_file(root, steps)
    file.parent.mkdir(parents=True)
    lines = (
        {"step": s, "reward/mean": s / 10, "reward_metrics/own": 1, "time/step": 2.0, "time/train": 0.5}
        for s in range(1, steps + 1)
    )
    names.metrics_file(root).write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [_sample(0, 0.25, EVIL, steps), _sample(1, 0.75, "", steps)]
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return root


def _sample(number: int, reward: float, more: str, step: int) -> dict[str, Any]:
    said = [["<tool_call>", -0.1], [f"add{more}", -4.0], ["</tool_call>", None], [" 5", -0.5], None]
    segments = [
        {"source": "prompt", "text": f"2 + 3?{more}", "images": 1},
        {
            "source": "policy",
            "policy_step": step - 3,
            "text": "".join(str(t) for t, _ in filter(None, said)) + more,
            "tokens": said,
            "rest": more,
        },
        {"source": f"environment{more}", "text": more},
        {"source": "environment", "text": f"result 5{more}", "reward": 0.5},
        None,
    ]
    whole = {"prompt_index": 7, "sample": number, "reward": reward, "truncated": bool(more), "segments": segments}
    return whole | {
        "data_source": f"sum{more}",
        "prediction": f"4{more}",
        "answer": f"5{more}",
        "metrics": {f"own{more}": 1},
        "response": more,
    }


@contextmanager
def served(*roots: Path) -> Iterator[str]:
    """The address."""
    server = serving([RunFiles(root) for root in roots], 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chromium(url: str, *more: str) -> Sequence[str]:
    """The command."""
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    return (
        "chromium",
        *quiet,
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=10000",
        *more,
        url,
    )
