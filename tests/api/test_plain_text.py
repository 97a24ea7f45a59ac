"""Texts of others are made safe to show."""

from hypothesis import example, given
from hypothesis import strategies as st

from rljob_api.text import one_line, plain


@given(st.text())
@example("a\u2028b")
@example("\x1b]8;;x\x07link")
@example(" a ")
@example("\u00a0")
def test_text_is_made_safe_whether_it_can_be_printed_as_it_is_or_not(text: str) -> None:
    """Most can, which is decided faster than its control characters are looked for."""
    assert plain(text) == plain(f"{text}\n").removesuffix("\n")
    assert one_line(text) == one_line(f"{text}\t")
