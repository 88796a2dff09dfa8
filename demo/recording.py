"""Record a run of the demo's part about tasks as an animated picture: demo/recording.py FILE.svg

Each line of the picture is one that the demo printed, at the time that it printed. Nothing is drawn that was not seen.
"""

import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

COMMAND = [sys.executable, str(Path(__file__).resolve().parent), "--part", "tasks", "--language", "python"]
ROWS = 24  # on view
LINE, CHARACTER, MARGIN = 17, 7.3, 14
COLUMNS = 101
# How much slower than it was, and how long the last picture stays.
SLOWER, STAY_S = 1.6, 5.0
ELAPSED = re.compile(r"\s*(\d+\.\d+) s ")
ANSI = re.compile(r"\x1b\[(\d*)m")
COLOURS = {
    "": "#c9d1d9",
    "1": "#ffffff",
    "2": "#8b949e",
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "36": "#79c0ff",
}


def recorded() -> list[tuple[float, str]]:
    """The lines that the demo prints, each with the time at which it is to be seen."""
    environment = {**os.environ, "FORCE_COLOR": "1"}
    printed = subprocess.run(COMMAND, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines: list[tuple[float, str]] = []
    at = 0.0
    for line in printed.strip("\n").split("\n"):
        elapsed = ELAPSED.match(ANSI.sub("", line))
        # What is printed without a time comes behind what was before.
        at = float(elapsed[1]) * SLOWER if elapsed else at
        lines.append((at, line))
    return lines


def spans(line: str) -> str:
    """The text of a line with the colours of the terminal."""
    colour, drawn = "", ""
    for at, part in enumerate(ANSI.split(line)):
        if at % 2:
            colour = part.lstrip("0")
        elif part:
            drawn += f'<tspan fill="{COLOURS[colour]}">{escape(part)}</tspan>'
    return drawn


def picture(lines: list[tuple[float, str]]) -> str:
    total = lines[-1][0] + STAY_S
    height, width = ROWS * LINE + 2 * MARGIN, COLUMNS * CHARACTER + 2 * MARGIN
    styles, texts, moves = [], [], ["0% { transform: translateY(0) }"]
    for row, (at, line) in enumerate(lines):
        percent = at / total * 100
        shown = f"{percent:.2f}% {{ opacity: 0 }} {percent + 0.01:.2f}%, 100% {{ opacity: 1 }}"
        styles.append(f"@keyframes l{row} {{ 0%, {shown} }} .l{row} {{ animation-name: l{row} }}")
        texts.append(f'<text class="l{row}" x="{MARGIN}" y="{MARGIN + (row + 0.8) * LINE:.1f}">{spans(line)}</text>')
        if row >= ROWS:
            moves.append(f"{percent:.2f}% {{ transform: translateY(-{(row - ROWS + 1) * LINE}px) }}")
    summary = " ".join(ANSI.sub("", line).strip() for _, line in lines[-4:])
    last = f"translateY(-{max(len(lines) - ROWS, 0) * LINE}px)"
    moves.append(f"100% {{ transform: {last} }}")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">
<title>A long call over two processes, one of which is killed</title>
<desc>{escape(summary)}</desc>
<style>
text {{ font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }}
text, .all {{ animation: {total:.1f}s infinite step-end }}
.all {{ animation-name: all }}
@keyframes all {{ {" ".join(moves)} }}
{chr(10).join(styles)}
@media (prefers-reduced-motion) {{ text, .all {{ animation: none }} .all {{ transform: {last} }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg y="{MARGIN / 2}" width="100%" height="{ROWS * LINE + MARGIN}"><g class="all">
{chr(10).join(texts)}
</g></svg>
</svg>
"""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(picture(recorded()))
