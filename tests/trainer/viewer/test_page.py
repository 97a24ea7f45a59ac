"""The page in a real browser: what it shows of a run, and that no text of a job becomes markup."""

import html
import json
import re
import shutil
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
from PIL import Image

from rljob_api import names
from rljob_api.metrics import METRICS
from rljob_trainer.viewer.server import PAGE
from trainer.viewer.serving import EVIL, SECOND, chromium, make_run, resources, served, span

in_a_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not on PATH")


ROW = re.compile(r'<span class="name" title="([^"]*)">(.*?)(?=<div class="process"|</section>)')


def bars(row: str) -> list[tuple[str, str]]:
    """Title and place of each in the row of a process."""
    return re.findall(r'<span class="span \w+" title="([^"]*)" style="([^"]*)">', row)


def dom(profile: Path, url: str) -> str:
    """What the browser has made of the page; its title first."""
    command = chromium(url, "--dump-dom", f"--user-data-dir={profile}")
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout


@pytest.mark.slow
@in_a_browser
def test_samples_are_sorted_by_reward_and_hostile_texts_stay_texts(tmp_path: Path) -> None:
    with served(make_run(tmp_path / "run")) as url:
        best = dom(tmp_path / "profile", f"{url}/#view=samples")
        worst = dom(tmp_path / "profile", f"{url}/#view=samples&step=4&sample=0")
    rewards = re.findall(r'class="reward">([^<]*)<', best)
    assert rewards == ["0.75", "0.25"]
    assert "<title>run - RLJob</title>" in worst and worst.count("<script") == 1
    assert re.findall(r'<img src="([^"]*)"', worst) == ["/api/runs/0/samples/4/images/0"], "the one that has a number"
    shown = html.unescape(re.sub(r"<[^>]*>", "", worst))
    assert shown.count(EVIL) >= 8, (
        "data source, what it said, answer, metric, prompt, token, rest of the text, environment"
    )
    for fact in (
        "policy",
        "weights of step 1",
        "age 2",
        "reward 0.5",
        "3 images",
        "(<|image_pad|> \u00d7 64)2 + 3?",
        "trainer differs by 0.25, at most 0.5",
        "cut off yes",
        "unknown",
        "said 4",
        "answer 5",
    ):
        assert fact in shown
    assert re.search(r'<span class="call"><span class="token"[^>]*>&lt;tool_call&gt;', worst)
    assert 'title="log-probability -4, probability 0.01832; trainer -3.5, difference 0.5"' in worst
    assert 'title="log-probability -0.5, probability 0.6065"' in worst, "the trainer's is not known"


@pytest.mark.slow
@in_a_browser
def test_tokens_are_shaded_by_what_trainer_and_rollout_server_disagree_about(tmp_path: Path) -> None:
    with served(make_run(tmp_path / "run")) as url:
        shown = dom(tmp_path / "profile", f"{url}/#view=samples&sample=1&shade=difference")
    assert re.findall(r'class="token"[^>]*style="background-color: ([^;]*);', shown) == ["rgb(var(--more) / 0.60)"]
    assert "those that it finds likelier" in shown


CALLS = (
    '<tool_call>\n{"name": "add"}\n</tool_call>',
    "<minimax:tool_call>\n<invoke>\n</minimax:tool_call>",
    "<|tool_calls_section_begin|>add<|tool_calls_section_end|>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>add<\uff5ctool\u2581calls\u2581end\uff5c>",
    "<|channel|>commentary to=functions.add<|message|>{}<|call|>",
    "[TOOL_CALLS]add[ARGS]{}",
    '<|python_tag|>{"name": "add"}',
    'functools[{"name": "add"}]',
)


@pytest.mark.slow
@in_a_browser
def test_calls_in_the_formats_of_all_families_are_framed_however_they_are_cut_into_tokens(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    tokens = [
        {"source": "policy", "policy_step": 1, "tokens": [[two, -1.0] for two in pairs(f"So: {c}")]} for c in CALLS
    ]
    texts = [{"source": "environment", "text": f"So: {call}"} for call in CALLS]
    sample = {"prompt_index": 0, "sample": 0, "reward": 1.0, "segments": [*tokens, *texts]}
    names.samples_file(run, 4).write_text(json.dumps(sample) + "\n")
    with served(run) as url:
        shown = dom(tmp_path / "profile", f"{url}/#view=samples")
    assert framed(shown) == [*CALLS, *CALLS]


def pairs(text: str) -> list[str]:
    """Its characters, two at a time, so that no mark is one token."""
    return re.findall("..?", text, re.DOTALL)


def framed(shown: str) -> list[str]:
    """Texts from where a frame begins to the end of its turn."""
    inner = re.findall(r'<span class="call">(.*?)</div>', shown, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", text)) for text in inner]


@pytest.mark.slow
@in_a_browser
def test_an_image_keeps_its_proportions_next_to_a_taller_one(tmp_path: Path) -> None:
    run, red = make_run(tmp_path / "run"), (255, 0, 0)
    for number, size in enumerate([(200, 100), (50, 300)]):
        Image.new("RGB", size, red if number == 0 else (0, 0, 255)).save(names.sample_image(run, 4, number))
    segment = {"source": "prompt", "text": "?", "images": [0, 1]}
    sample = {"prompt_index": 0, "sample": 0, "reward": 1.0, "segments": [segment]}
    names.samples_file(run, 4).write_text(json.dumps(sample) + "\n")
    picture, profile = tmp_path / "picture.png", f"--user-data-dir={tmp_path}/profile"
    with served(run) as url:
        command = chromium(f"{url}/#view=samples", f"--screenshot={picture}", "--window-size=1400,1000", profile)
        subprocess.run(command, capture_output=True, timeout=200, check=True)
    with Image.open(picture) as seen:
        at = [i for i, colour in enumerate(seen.convert("RGB").getdata()) if colour == red]
        across, down = {i % seen.width for i in at}, {i // seen.width for i in at}
    assert len(down) > 50 and abs(len(across) / len(down) - 2) < 0.1


@pytest.mark.slow
@in_a_browser
def test_a_bar_is_as_long_as_its_span_and_has_its_name_where_that_fits(tmp_path: Path) -> None:
    run, brown = make_run(tmp_path / "run"), (168, 100, 0)
    spans = json.loads(names.spans_file(run, 4).read_text())
    (whole, *_), begin = spans["resourceSpans"][0]["scopeSpans"][0]["spans"], 10**18 + 8 * SECOND
    lengths = {"a": SECOND, "b": SECOND // 50, "c": SECOND // 1000}
    of = {"driver": [whole]} | {name: [span("generating", begin, begin + long)] for name, long in lengths.items()}
    names.spans_file(run, 4).write_text(json.dumps({"resourceSpans": resources(of)}) + "\n")
    picture, profile = tmp_path / "picture.png", f"--user-data-dir={tmp_path}/profile"
    with served(run) as url:
        command = chromium(f"{url}/#view=time&step=4", f"--screenshot={picture}", "--window-size=1400,1000", profile)
        subprocess.run(command, capture_output=True, timeout=200, check=True)
    with Image.open(picture) as seen:
        found = blocks(seen.convert("RGB"), brown)
    assert [has_name for _, has_name in found] == [True, False, False, False], "that of the legend is the last"
    long, short, tiny, _ = (width for width, _ in found)
    assert abs(long / short - 50) < 5 and tiny == 2


def blocks(picture: Image.Image, colour: tuple[int, int, int]) -> list[tuple[int, bool]]:
    """Of each block of the colour, from above: how many pixels it is wide, and whether something is written in it."""
    rows: list[list[int]] = [[]]
    for y in range(picture.height):
        row = [picture.getpixel((x, y)) for x in range(picture.width)]
        rows.append([x for x, pixel in enumerate(row) if pixel == colour])
    starts = [y for y in range(1, len(rows)) if rows[y] and not rows[y - 1]]
    found = [list(takewhile(bool, rows[start:])) for start in starts]
    return [(max(map(_width, block)), any(len(row) < _width(row) for row in block)) for block in found]


def _width(row: list[int]) -> int:
    return row[-1] - row[0] + 1


@pytest.mark.slow
@in_a_browser
def test_two_runs_are_drawn_in_the_same_curves_and_times(tmp_path: Path) -> None:
    with served(make_run(tmp_path / "one"), make_run(tmp_path / "two", steps=6)) as url:
        curves = dom(tmp_path / "profile", f"{url}/#view=curves")
        filtered = dom(tmp_path / "profile", f"{url}/#view=curves&filter=time/")
        times = dom(tmp_path / "profile", f"{url}/#view=time&step=3")
        unknown = dom(tmp_path / "profile", f"{url}/#view=constructor&step=x")
    assert re.findall(r"<h2>([^<]*)</h2>", curves) == ["reward/mean", "time/step", "reward_metrics/own"]
    assert len(re.findall(r'<path class="run-[01]" d="M', curves)) == 6 and "3 of 4 metrics" in curves
    assert re.findall(r"<h2>([^<]*)</h2>", filtered) == ["time/step", "time/train"]
    assert times.count('<th scope="row">train</th>') == 2 and times.count(">0.5 s</td>") == 2
    assert "<h2>reward/mean</h2>" in unknown


@pytest.mark.slow
@in_a_browser
def test_what_each_process_did_in_a_step_lies_where_it_was_done(tmp_path: Path) -> None:
    with served(make_run(tmp_path / "run")) as url:
        shown = dom(tmp_path / "profile", f"{url}/#view=time&step=3")
    assert shown.count("<script") == 1 and "<img" not in shown
    rows = {html.unescape(name): bars(row) for name, row in ROW.findall(shown)}
    assert list(rows) == sorted(["driver", "trainer", "r0", EVIL])
    assert rows["trainer"] == [("training: 1 s, from 1 s of the step", "left: 50%; width: 50%; top: 0rem;")]
    before, after = (
        ("generating: 2 s, from -1 s of the step", "left: 0%"),
        ("generating: 2 s, from 1 s of the step", "left: 50%"),
    )
    assert rows["r0"] == [(text, f"{left}; width: 50%; top: 0rem;") for text, left in (before, after)], (
        "one ended later"
    )
    assert [style.rpartition("top: ")[2] for _, style in rows[EVIL]] == ["0rem;", "1.35rem;", "0rem;"], "none overlap"


@pytest.mark.slow
@in_a_browser
def test_a_run_that_has_written_nothing_says_so(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        assert "This run has no samples" in dom(tmp_path / "profile", f"{url}/#view=samples")
        assert "No step is done yet." in dom(tmp_path / "profile", f"{url}/#view=time")


def test_metrics_that_the_page_names_exist_and_every_duration_has_its_process() -> None:
    asked = {name for file in PAGE.glob("*.js") for name in re.findall(r'"([a-z_]+/[a-z_]+)"', file.read_text())}
    assert len(asked) > 20 and asked <= METRICS.keys()
    assert {name for name in METRICS if name.startswith("time/")} <= asked
