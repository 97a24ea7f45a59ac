"""Write every picture, for light and for dark pages: `python -m docs.pictures DIRECTORY`."""

import sys
from collections.abc import Callable
from pathlib import Path

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
    "learning-ahead": learning.draw_ahead,
}


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        for mode, theme in THEMES.items():
            (directory / f"{name}-{mode}.svg").write_text(draw(theme).svg())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
