"""Ages and tables as kubectl prints them."""

import pytest

from cli.makers import NOW, ago, epoch
from kubectl_rljob.printers.curves import curve, line, trend
from kubectl_rljob.printers.text import age, clip, cut, duration, plural, table
from rljob_api.protocol import Point


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (600, "10m"),
        (179 * 60, "179m"),
        (3 * 3600, "3h"),
        (8 * 3600 - 60, "7h59m"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (49 * 3600, "2d1h"),
        (8 * 86400, "8d"),
        (730 * 86400, "2y"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_age_counts_from_a_timestamp_or_from_the_epoch() -> None:
    assert (age(ago(minutes=5), NOW), age(epoch(hours=1), NOW), age("", NOW), age(0.0, NOW)) == (
        "5m",
        "60m",
        "<unknown>",
        "<unknown>",
    )


def test_a_table_is_as_wide_as_its_widest_cells_and_has_no_trailing_blanks() -> None:
    assert (
        table(("A", "LONG"), [("wide cell", None), (0, "x")]) == "A           LONG\nwide cell   <none>\n0           x"
    )


def test_clipping_keeps_the_first_line() -> None:
    assert (clip("one\ntwo", 9), clip("abcdef", 4)) == ("one", "abc…")


def test_plurals() -> None:
    assert [plural(1, "rank"), plural(1000, "rank"), plural(2, "batch"), plural(2, "process")] == [
        "1 rank",
        "1,000 ranks",
        "2 batches",
        "2 processes",
    ]


def points(*rewards: float) -> list[Point]:
    return [Point(step=i, reward=r, loss=0.0, seconds=1.0) for i, r in enumerate(rewards)]


def test_a_trend_compares_the_last_points_with_as_many_before_them() -> None:
    assert trend(points(0.5)) == ""
    assert trend(points(9.0, 0.25, 0.75, 0.75, 1.25)) == " ▲0.50"
    assert trend(points(*[1.0] * 10, *[0.5] * 10)) == " ▼0.50"


def test_a_flat_curve_is_flat() -> None:
    assert curve(points(0.5, 0.5)) == "REWARD 0.50 ▁▁ 0.50, steps 0-1"


def test_without_rewards_trend_and_curve_are_those_of_the_loss() -> None:
    losses = [Point(step=i, loss=loss, seconds=1.0) for i, loss in enumerate((2.0, 1.25, 0.5))]
    assert curve(losses) == "LOSS 2.000 █▅▁ 0.500, steps 0-2"
    assert line({"train/loss": 0.5, "train/entropy": 0.1}, losses) == "LOSS 0.5000 ▼0.750   ENTROPY 0.10"


def test_a_table_that_is_too_wide_loses_the_end_of_its_lines_and_keeps_its_columns() -> None:
    assert table(("A", "PATH"), [("one", "/data/run"), ("two", "/")], 12) == "A     PATH\none   /data…\ntwo   /"


def test_wide_characters_take_two_columns() -> None:
    assert table(("A", "B"), [("漢字", 1), ("ab", 2)]) == "A      B\n漢字   1\nab     2"
    assert cut("漢字漢字", 5) == "漢字…"
