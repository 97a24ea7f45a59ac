"""The generated page of the spec."""

import re

from rljob_api.schema.docs import api_page


def test_every_rule_stands_under_a_heading_that_says_whose_it_is() -> None:
    heading, rules = "", 0
    for line in api_page().splitlines():
        heading = line if line.startswith("#") else heading
        if line.startswith("- "):
            rules += 1
            section = re.fullmatch(r"### Rules of (.+)", heading)
            assert section, f"{line} stands under {heading}"
            assert line.startswith(f"- {section[1]}")
    assert rules


def test_a_rule_without_values_is_a_sentence() -> None:
    """The API server's messages name fields and cannot show what they hold."""
    messages = [line for line in api_page().splitlines() if line.startswith("- spec")]
    dangling = [m for m in messages if re.search(r"(: |, and )spec(\.\w+)+;", m.partition(": ")[2])]
    assert not dangling
