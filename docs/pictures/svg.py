"""What the pictures are drawn with: shapes in pixels, in the colours of a light and of a dark page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif"
LIGHT = {
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#c8ced6",
    "surface": "#f6f8fa",
    "card": "#ffffff",
    "trainer": "#3b5bdb",
    "trainer-soft": "#e4e9fc",
    "rollout": "#b35900",
    "rollout-soft": "#fdebd6",
    "control": "#7048a8",
    "control-soft": "#f0e6fb",
    "good": "#1a7f4b",
    "good-soft": "#dcf3e6",
    "bad": "#c2314a",
    "bad-soft": "#fde4e8",
}
DARK = {
    "ink": "#e6edf3",
    "muted": "#9aa5b1",
    "line": "#4a535e",
    "surface": "#1a2028",
    "card": "#232b35",
    "trainer": "#8fa8ff",
    "trainer-soft": "#2a3560",
    "rollout": "#f0a35c",
    "rollout-soft": "#4d3319",
    "control": "#c79bf2",
    "control-soft": "#40305a",
    "good": "#5fd39a",
    "good-soft": "#1d4533",
    "bad": "#ff8fa3",
    "bad-soft": "#54242f",
}
THEMES = {"light": LIGHT, "dark": DARK}


@dataclass
class Canvas:
    """A picture under construction. Colours are names of a theme."""

    width: int
    height: int
    title: str
    """Read out by a screen reader."""
    theme: dict[str, str]
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "", radius: float = 8) -> None:
        edge = f' stroke="{self.theme[stroke]}" stroke-width="1.5"' if stroke else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" fill="{self.theme[fill]}"{edge}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 14,
        colour: str = "ink",
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """`y` is the base line."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}"{weight} text-anchor="{anchor}" fill="{self.theme[colour]}">{escape(words)}</text>'
        )

    def label(self, x: float, y: float, w: float, h: float, lines: Sequence[str], colour: str = "ink") -> None:
        """Centred in a box: the first line bold, the others small."""
        first = y + h / 2 + 5 - 9 * (len(lines) - 1)
        for i, line in enumerate(lines):
            self.text(x + w / 2, first + 18 * i, line, 13 if i else 15, "muted" if i else colour, "middle", not i)

    def arrow(
        self, points: Sequence[tuple[float, float]], colour: str, dashed: bool = False, both: bool = False
    ) -> None:
        """A line with a head at its last point, and one at its first if `both`."""
        way = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        start = f' marker-start="url(#{colour})"' if both else ""
        self.parts.append(
            f'<polyline points="{way}" fill="none" stroke="{self.theme[colour]}" stroke-width="1.8" stroke-linejoin="round"{dash}'
            f'{start} marker-end="url(#{colour})"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "line", width: float = 1) -> None:
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{self.theme[colour]}" stroke-width="{width:g}"/>'
        )

    def dot(self, x: float, y: float, radius: float, fill: str, stroke: str) -> None:
        self.parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{self.theme[fill]}" stroke="{self.theme[stroke]}" stroke-width="2"/>'
        )

    def svg(self) -> str:
        heads = "".join(_head(name, self.theme[name]) for name in self.theme if f"url(#{name})" in "".join(self.parts))
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
            f' role="img" font-family="{FONT}">\n<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n{body}\n</svg>\n'
        )


def _head(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        f'<path d="M0,1 L10,5 L0,9 z" fill="{colour}"/></marker>'
    )
