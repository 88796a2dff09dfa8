"""Draws one SVG for each language: what the sides reach, a bar of each for every row."""

from __future__ import annotations

from html import escape

from rows import BESIDE_STOCK, FRONT_BESIDE_STOCK, ROWS, Results, Row, ratio, shown, times, value

WIDTH = 860
BARS_FROM, BARS_TO = 270, 690
BAR, GROUP = 15, 62
SIDES = {"stock": ("stock", "#9aa0a6"), "tailrope": ("Tailrope", "#0b6e99"), "front": ("its front", "#c2571a")}
STYLE = "text{font-family:system-ui,sans-serif;font-size:13px;fill:#1f2328}.head{font-weight:600}.end{text-anchor:end}"


class Drawing:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 0

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        of = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{of}>{escape(words)}</text>')

    def bar(self, x: float, y: float, width: float, color: str) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{BAR}" fill="{color}"/>')

    def group(self, results: Results, row: Row) -> None:
        """Each group has a scale of its own: its longer bar fills the room."""
        values = {side: value(results, side, row.measure, row.field) for side in SIDES}
        found = {side: amount for side, amount in values.items() if amount is not None}
        most = max(found.values()) or 1.0
        self.text(BARS_FROM - 12, self.y + BAR + 5, row.plain, "end")
        for place, (side, amount) in enumerate(found.items()):
            width = max(1.0, (BARS_TO - BARS_FROM) * max(0.0, amount) / most)
            top = self.y + place * (BAR + 1)
            self.bar(BARS_FROM, top, width, SIDES[side][1])
            self.text(BARS_FROM + width + 6, top + BAR - 3, shown(amount, row.unit))
        for place, sides in enumerate((BESIDE_STOCK, FRONT_BESIDE_STOCK)):
            top = self.y + (place + 1) * (BAR + 1)
            self.text(WIDTH - 16, top + BAR - 3, times(ratio(results, row, sides)), "head end")
        self.y += GROUP

    def section(self, results: Results, title: str, rows: list[Row]) -> None:
        self.text(16, self.y + 14, title, "head")
        self.y += 30
        for row in rows:
            self.group(results, row)

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y}" width="{WIDTH}" height="{self.y}">'
        )
        ground = f'<rect width="{WIDTH}" height="{self.y}" fill="#ffffff"/>'
        return "\n".join([head, f"<style>{STYLE}</style>", ground, *self.parts, "</svg>"]) + "\n"


def plot(results: Results, title: str) -> str:
    drawing = Drawing()
    drawing.y = 14
    drawing.text(16, drawing.y + 14, title, "head")
    x = BARS_TO - 260
    for name, color in SIDES.values():
        drawing.bar(x, drawing.y + 2, BAR, color)
        drawing.text(x + BAR + 6, drawing.y + 14, name)
        x += 90
    drawing.text(WIDTH - 16, drawing.y + 14, "by stock", "head end")
    drawing.y += 36
    rows = [row for row in ROWS if row.plain and value(results, "stock", row.measure, row.field) is not None]
    drawing.section(results, "More is better", [row for row in rows if row.is_rate])
    drawing.section(results, "Less is better", [row for row in rows if not row.is_rate])
    return drawing.svg()
