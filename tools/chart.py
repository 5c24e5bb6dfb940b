"""Pictures of numbers, as SVG without any package.

    chart.lines({"float32": [(0, 4.1), (1, 3.9)]}, title="loss", x_name="step", y_name="loss")
    chart.bars({"RMS norm": [("forward", 0.94), ("backward", 0.91)]}, title="share of a copy", unit="%")
"""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 44  # margins around the curves
COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")
STYLE = """
  text { font: 12px sans-serif; fill: #444; }
  .title { font-size: 14px; fill: #111; }
  .grid { stroke: #ddd; }
  .curve { fill: none; stroke-width: 1.5; stroke-linejoin: round; }
"""


def ticks(low, high, count=6):
    """About `count` round numbers in [low, high]."""
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * min((1, 2, 5, 10), key=lambda factor: abs(factor * magnitude - rough))
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def bounds(values):
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0  # a constant series still has a height
    return low - margin, high + margin


def page(width, height, title, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
        *parts,
        "</svg>\n",
    ])


def lines(series, title, x_name, y_name):
    """series: name -> points [(x, y), ...]; one has no legend."""
    points = [point for curve in series.values() for point in curve]
    first = min(x for x, _ in points)
    last = max(max(x for x, _ in points), first + 1)
    low, high = bounds([y for _, y in points])

    def x_of(x):
        return LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y_of(y):
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in ticks(low, high):
        parts.append(f'<path class="grid" d="M{LEFT} {y_of(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(first, last):
        parts.append(f'<text x="{x_of(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})">{escape(y_name)}</text>')
    for index, (name, curve) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve)
        parts.append(f'<polyline class="curve" style="stroke:{color}" points="{path}"/>')
        if len(series) > 1:
            parts.append(f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 16 * (index + 1)}" text-anchor="end" '
                         f'style="fill:{color}">{escape(name)}</text>')
    return page(WIDTH, HEIGHT, title, parts)


def bars(groups, title, unit, full=None):
    """groups: name -> [(label, value), ...], a horizontal bar each. `full`: a value to draw a line at."""
    row, name_width = 18, 330
    count = sum(len(group) + 1 for group in groups.values())
    width, height = 860, TOP + row * count + 8
    high = max([value for group in groups.values() for _, value in group] + [full or 0.0]) or 1.0

    def x_of(value):
        return name_width + value / high * (width - name_width - 64)

    parts, y = [], TOP
    for index, (name, group) in enumerate(groups.items()):
        y += row
        parts.append(f'<text class="title" x="8" y="{y}">{escape(name)}</text>')
        for label, value in group:
            y += row
            parts.append(f'<text x="{name_width - 8}" y="{y}" text-anchor="end">{escape(label)}</text>')
            parts.append(f'<rect x="{name_width}" y="{y - 11}" width="{max(x_of(value) - name_width, 0.5):.1f}" height="12" '
                         f'fill="{COLORS[index % len(COLORS)]}"/>')
            parts.append(f'<text x="{x_of(value) + 4:.1f}" y="{y}">{value:.4g} {escape(unit)}</text>')
    if full:
        parts.append(f'<path class="grid" style="stroke:#111" d="M{x_of(full):.1f} {TOP}V{height - 4}"/>')
    return page(width, height, title, parts)
