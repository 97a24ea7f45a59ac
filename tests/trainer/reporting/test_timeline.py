"""Spans of what processes do: of work that overlaps, of one thing at a time, and of steps."""

import time

from rljob_trainer.reporting import timeline
from rljob_trainer.reporting.timeline import MOST_SPANS, Timeline


def test_what_a_process_does_several_times_at_once_is_one_span_until_all_has_ended() -> None:
    line = Timeline()
    before = time.time_ns()
    with line.working("r0", "generating"):
        with line.working("r0", "generating"), line.working("r1", "generating"):
            time.sleep(0.01)
        assert [span.process for span in line.cut().spans] == ["r1"], "r0 still generates"
        time.sleep(0.01)
    (span,) = line.cut().spans
    assert (span.process, span.name) == ("r0", "generating")
    assert before - 10**6 <= span.began, "clocks are read one after another"
    assert span.ended - span.began >= 20_000_000


def test_a_short_pause_is_none_and_a_long_one_begins_another_span() -> None:
    line = Timeline()
    for pause in (0.0, 2 * timeline.PAUSE / 1e9, 0.0):
        with line.working("r0", "generating"):
            pass
        time.sleep(pause)
    assert len(line.cut().spans) == 2


def test_a_process_that_does_one_thing_at_a_time_ends_it_with_the_next() -> None:
    line = Timeline()
    for name in ("scoring", "training", "training", "", "saving"):
        line.turn("trainer", name)
        time.sleep(0.001)
    first, second = line.cut().spans
    assert [first.name, second.name] == ["scoring", "training"] and first.ended == second.began
    line.turn("trainer", "")
    assert [span.name for span in line.cut().spans] == ["saving"]


def test_a_step_begins_where_the_one_before_has_ended() -> None:
    line = Timeline()
    first, second = line.cut(), line.cut()
    assert first.began <= first.ended == second.began <= second.ended and not second.spans


def test_many_spans_of_a_step_are_bounded() -> None:
    line = Timeline()
    for number in range(MOST_SPANS + 3):
        line.turn("trainer", str(number))
    assert len(line.cut().spans) == MOST_SPANS
