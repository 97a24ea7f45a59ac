"""A server of the page for tests, and runs that it shows."""

import io
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from rljob_api import names
from rljob_trainer.viewer.runs import RunFiles
from rljob_trainer.viewer.server import serving

SECOND = 10**9
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def png(side: int, value: int) -> bytes:
    """A grey image."""
    stream = io.BytesIO()
    Image.new("RGB", (side, side), (value, value, value)).save(stream, "PNG")
    return stream.getvalue()


def make_run(root: Path, steps: int = 4) -> Path:
    """Metrics, and two samples of the last step with an image, of which the worse one comes first and says EVIL wherever a text may stand."""
    file = names.samples_file(root, steps)
    file.parent.mkdir(parents=True)
    lines = (
        {"step": s, "reward/mean": s / 10, "reward_metrics/own": 1, "time/step": 2.0, "time/train": 0.5}
        for s in range(1, steps + 1)
    )
    names.metrics_file(root).write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [_sample(0, 0.25, EVIL, steps), _sample(1, 0.75, "", steps)]
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    names.sample_image(root, steps, 0).write_bytes(png(32, 128))
    names.spans_file(root, 1).parent.mkdir()
    for step in range(1, steps + 1):
        names.spans_file(root, step).write_text(json.dumps(_spans(step)) + "\n")
    return root


def _spans(step: int) -> dict[str, Any]:
    """A step of two seconds, half of it training. Two servers generate from its middle to that of the next one."""
    begin = 10**18 + step * 2 * SECOND
    of = {
        "driver": [span(f"step {step}", begin, begin + 2 * SECOND, ""), span(EVIL, begin, begin + SECOND)],
        "trainer": [span("training", begin + SECOND, begin + 2 * SECOND)],
        "r0": [span("generating", begin - SECOND, begin + SECOND)],
        EVIL: [span("generating", begin - SECOND, begin + SECOND), span("again", begin, begin + SECOND)],
    }
    return {"resourceSpans": [*resources(of), None, {"scopeSpans": 1}]}


def resources(of: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Spans of processes, as OTLP has them."""
    named = {name: {"attributes": [{"key": "service.name", "value": {"stringValue": name}}]} for name in of}
    return [{"resource": named[name], "scopeSpans": [{"spans": own}, None]} for name, own in of.items()]


def span(name: str, began: int, ended: int, parent: str = "p") -> dict[str, Any]:
    return {"name": name, "parentSpanId": parent, "startTimeUnixNano": str(began), "endTimeUnixNano": str(ended)}


def _sample(number: int, reward: float, more: str, step: int) -> dict[str, Any]:
    said = [["<tool_call>", -0.1, -0.1], [f"add{more}", -4.0, -3.5], ["</tool_call>", None, -1.0], [" 5", -0.5], None]
    segments = [
        {"source": "prompt", "text": f"{'<|image_pad|>' * 64}2 + 3?{more}", "images": [0, f"0{more}", None]},
        {
            "source": "policy",
            "policy_step": step - 3,
            "text": "".join(str(t) for t, *_ in filter(None, said)) + more,
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
