"""SVG: lines over two axes, grouped bars. Colours are classes (`s0`, `s1`, ...), so that the page's theme decides."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 36, 30, 46
TICKS_WANTED = 5


@dataclass(frozen=True)
class Axis:
    """`kind`: linear, log, bytes (log with ticks at powers of two), or quantile (log of the rest to 1); `show` makes a
    tick's text."""

    label: str
    kind: str
    show: object

    def position(self, value):
        """Where a value lies before scaling; None where the axis has no place for it."""
        if value is None or not math.isfinite(value):
            return None
        if self.kind in ("log", "bytes"):
            return math.log10(value) if value > 0 else None
        if self.kind == "quantile":
            return -math.log10(1 - value) if 0 <= value < 1 else None
        return value

    def ticks(self, low, high):
        """Values to mark between two positions."""
        if self.kind == "quantile":
            return [1 - 10**-nines for nines in range(0, math.floor(high + 1e-9) + 1)]
        if self.kind == "log":
            return log_ticks(low, high)
        if self.kind == "bytes":
            return binary_ticks(low, high)
        return linear_ticks(low, high)


def linear_ticks(low, high):
    step = nice((high - low) / TICKS_WANTED or 1)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def nice(step):
    """The step rounded up to 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def log_ticks(low, high):
    decades = range(math.floor(low), math.ceil(high) + 1)
    factors = (1, 2, 5) if high - low <= 2 else (1,)
    if high - low > 6:
        decades = [decade for decade in decades if decade % 2 == 0]
    values = [factor * 10.0**decade for decade in decades for factor in factors]
    return [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]


def binary_ticks(low, high):
    first, last = math.ceil(low / math.log10(2) - 1e-9), math.floor(high / math.log10(2) + 1e-9)
    step = math.ceil((last - first + 1) / (TICKS_WANTED + 1)) or 1
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def bounds(axis, values):
    """The positions an axis runs from and to: some room, zero for linear ones, whole decades or halves for log ones."""
    placed = [axis.position(value) for value in values]
    placed = [value for value in placed if value is not None]
    if not placed:
        return None
    low, high = min(placed), max(placed)
    if axis.kind == "quantile":
        return 0, max(high, 1)
    if axis.kind in ("log", "bytes"):
        low, high = math.floor(low * 3 - 0.2) / 3, math.ceil(high * 3 + 0.2) / 3
        return (low, high) if high - low >= 1 else (low, low + 1)
    high = high or 1
    return min(0, low), high + 0.06 * abs(high)


@dataclass
class Line:
    """Points of one server; `tips` are texts for some of the points, by index."""

    style: int
    name: str
    points: list
    tips: dict
    dots: bool = True


def lines(title, x_axis, y_axis, drawn, marks=()):
    """A chart of lines; None when there is nothing to draw. `marks` are (x, text) for upright rules."""
    drawn = [clean(line, x_axis, y_axis) for line in drawn]
    drawn = [line for line in drawn if line.points]
    xs = bounds(x_axis, [x for line in drawn for x, _ in line.points])
    ys = bounds(y_axis, [y for line in drawn for _, y in line.points])
    if not xs or not ys:
        return None
    across = scale(xs, LEFT, WIDTH - RIGHT)
    up = scale(ys, HEIGHT - BOTTOM, TOP)
    parts = [frame(x_axis, y_axis, xs, ys, across, up)]
    for x, text in marks:
        at = across(x_axis.position(x))
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{at + 4:.1f}" y="{TOP + 10}">{escape(text)}</text>')
    for line in drawn:
        placed = [(across(x_axis.position(x)), up(y_axis.position(y))) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        if len(placed) > 1:
            parts.append(f'<polyline class="line s{line.style}" points="{path}"/>')
        for at, (x, y) in enumerate(placed):
            tip = line.tips.get(at)
            if tip or line.dots or len(placed) == 1:
                shown = f' data-tip="{escape(f"{line.name}: {tip}")}"' if tip else ""
                parts.append(f'<circle class="dot s{line.style}" cx="{x:.1f}" cy="{y:.1f}" r="3"{shown}/>')
    return svg(title, HEIGHT, "".join(parts))


def clean(line, x_axis, y_axis):
    """Without the points that an axis has no place for; tips keep to their points."""
    kept = [
        at for at, (x, y) in enumerate(line.points) if x_axis.position(x) is not None and y_axis.position(y) is not None
    ]
    tips = {new: line.tips[old] for new, old in enumerate(kept) if old in line.tips}
    return Line(line.style, line.name, [line.points[at] for at in kept], tips, line.dots)


def scale(positions, first, last):
    low, high = positions
    return lambda value: first + (value - low) / (high - low) * (last - first)


def frame(x_axis, y_axis, xs, ys, across, up):
    """Grid, ticks and the axes' names."""
    parts = []
    for value in x_axis.ticks(*xs):
        at = across(x_axis.position(value))
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        text = escape(x_axis.show(value))
        parts.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
    for value in y_axis.ticks(*ys):
        at = up(y_axis.position(value))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        text = escape(y_axis.show(value))
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_axis.label)}</text>'
    )
    parts.append(f'<text class="label" x="0" y="12">{escape(y_axis.label)}</text>')
    return "".join(parts)


BAR, GAP, GROUP_GAP, NAME_LINE = 13, 3, 14, 18


def bars(title, groups, own_scale=False):
    """Grouped bars that lie, all on one scale or each group on its own: (name, [(style, server, value, text)])."""
    groups = [(name, [bar for bar in each if bar[2] is not None]) for name, each in groups]
    groups = [(name, each) for name, each in groups if each]
    if not groups:
        return None
    most = max(bar[2] for _, each in groups for bar in each)
    room, top, parts = WIDTH - 110, 6, []
    for name, each in groups:
        parts.append(f'<text class="name" x="0" y="{top + 12}">{escape(name)}</text>')
        top += NAME_LINE
        largest = (max(bar[2] for bar in each) if own_scale else most) or 1
        for style, server, value, text in each:
            width = max(1.5, value / largest * room)
            tip = escape(f"{server}: {name}: {text}")
            place = f'x="0" y="{top}" width="{width:.1f}" height="{BAR}" rx="2"'
            parts.append(f'<rect class="bar s{style}" {place} data-tip="{tip}"/>')
            parts.append(f'<text class="value" x="{width + 6:.1f}" y="{top + BAR - 2}">{escape(text)}</text>')
            top += BAR + GAP
        top += GROUP_GAP
    return svg(title, top - GROUP_GAP + 4, "".join(parts))


def reach(better, wanted, most, tip):
    """One goal as a bar on a log scale: how many times better than the reference, and where the goal is."""
    span = math.log10(most)
    place = lambda times: 2 + max(0, math.log10(max(times, 1e-9))) / span * 196  # noqa: E731
    met = "met" if better >= wanted else "missed"
    width = max(2, place(better) - 2)
    goal = place(wanted)
    return (
        f'<svg class="reach" viewBox="0 0 200 14" preserveAspectRatio="none" role="img" aria-label="{escape(tip)}" '
        f'data-tip="{escape(tip)}"><rect class="track" x="2" y="4" width="196" height="6"/>'
        f'<rect class="{met}" x="2" y="4" width="{width:.1f}" height="6"/>'
        f'<line class="goal" x1="{goal:.1f}" x2="{goal:.1f}" y1="0" y2="14"/></svg>'
    )


def svg(title, height, inside):
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{inside}</svg>'
