"""Every picture, for light and for dark pages."""

from collections.abc import Callable

from docs.pictures import architecture, asynchrony, learning, memory, performance, states, timeline
from docs.pictures.svg import THEMES, Canvas

PICTURES: dict[str, Callable[[dict[str, str]], Canvas]] = {
    "architecture": architecture.draw,
    "timeline": timeline.draw,
    "asynchrony": asynchrony.draw,
    "states": states.draw,
    "memory": memory.draw,
    "performance": performance.draw,
    "learning": learning.draw,
    "learning-reasoning-gym": learning.draw_reasoning_gym,
    "learning-ahead": learning.draw_ahead,
    "learning-recipe": learning.draw_recipe,
    "learning-long": learning.draw_long_run,
}


def pictures() -> dict[str, str]:
    """SVG by name of the file."""
    return {
        f"{name}-{mode}.svg": draw(theme).svg() for name, draw in PICTURES.items() for mode, theme in THEMES.items()
    }
