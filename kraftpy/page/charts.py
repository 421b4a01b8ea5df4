"""Plots for pages that are read without a server: SVG that stretches, its words beside it in HTML.

Rules: an SVG has no text and is drawn on `WIDTH` x its height, stretched to the room there is, so
words keep their size on a phone. Everything that is given is escaped. `paper` says what
classes look like.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from kraftpy.frozen import NamedTuple
from kraftpy.page.html import Html

WIDTH = 1000
HEIGHT = 100
_TICKS = 4
_DECADES_MIN = 2
_LEAST = 1e-300
"""What is nearer to 0 is 0: powers of ten end there."""

Points = Sequence[float | None]


class Band(NamedTuple):
    """A stretch of time in seconds, drawn behind the data; `kind` is a CSS class."""

    start_s: float
    end_s: float
    kind: str
    label: str


class Scale(NamedTuple):
    """How values become heights: linear from `low` (0 or less) or in powers of ten, to `top`."""

    low: float
    top: float
    logarithmic: bool

    def y(self, value: float) -> float:
        if self.logarithmic:
            span = math.log10(self.top / self.low)
            part = math.log10(max(value, self.low) / self.low) / span
        else:
            part = (value - self.low) / (self.top - self.low)
        return HEIGHT * (1 - min(1.0, part))


def linear(highest: float, lowest: float = 0) -> Scale:
    """From 0, or a round number that is not above `lowest`, to one that is not below `highest`."""
    low = -_round_up(-lowest) if lowest < -_LEAST else 0
    return Scale(low, _round_up(highest) if highest > _LEAST else 0 if low else 1, False)


def _round_up(value: float) -> float:
    step = 10.0 ** math.floor(math.log10(value))
    return next(step * times for times in (1, 2, 5, 10) if step * times >= value * 0.999)


def decades(values: Iterable[float]) -> Scale:
    """Powers of ten around these values, two at least."""
    positive = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(positive)))
    top = max(low + _DECADES_MIN, math.ceil(math.log10(max(positive))))
    return Scale(10.0**low, 10.0**top, True)


def line(points: Points, scale: Scale, kind: str) -> Html:
    """A line by bucket; where there is no value there is no line."""
    step = WIDTH / max(1, len(points))
    parts: list[str] = []
    pen_down = False
    for index, value in enumerate(points):
        if value is None:
            pen_down = False
            continue
        x, y = (index + 0.5) * step, scale.y(value)
        if not pen_down and (index + 1 == len(points) or points[index + 1] is None):
            parts.append(f"M{x - step / 2:.1f} {y:.1f}H{x + step / 2:.1f}")  # a value by itself
            continue
        parts.append(f"{'L' if pen_down else 'M'}{x:.1f} {y:.1f}")
        pen_down = True
    return Html(f'<path class="line {kind}" d="{"".join(parts)}"/>')


def dots(points: Sequence[Sequence[float]], scale: Scale, duration_s: float, kind: str) -> Html:
    """One dot for each (seconds, value)."""
    drawn = "".join(
        f"M{WIDTH * at_s / duration_s:.1f} {scale.y(value):.1f}h0" for at_s, value in points
    )
    return Html(f'<path class="dots {kind}" d="{drawn}"/>')


def stack(layers: Sequence[tuple[str, Sequence[float]]], scale: Scale) -> Html:
    """Bars by bucket, one layer on top of the other; a layer is a class and its values."""
    count = len(layers[0][1])
    step = WIDTH / max(1, count)
    below = [0.0] * count
    drawn = []
    for kind, values in layers:
        parts = []
        for index, value in enumerate(values):
            if value:
                foot, head = scale.y(below[index]), scale.y(below[index] + value)
                parts.append(f"M{index * step:.1f} {foot:.1f}V{head:.1f}h{step:.1f}V{foot:.1f}z")
                below[index] += value
        drawn.append(f'<path class="fill {kind}" d="{"".join(parts)}"/>')
    return Html("".join(drawn))


def bands(found: Iterable[Band], duration_s: float) -> Html:
    """Faults and phases behind the data; a moment gets a width that can be seen."""
    drawn = []
    for band in found:
        x = WIDTH * band.start_s / duration_s
        width = max(2.0, WIDTH * (band.end_s - band.start_s) / duration_s)
        drawn.append(
            f'<rect class="{band.kind}" x="{x:.1f}" y="0" width="{width:.1f}" height="{HEIGHT}">'
            f"<title>{escape(band.label)}</title></rect>"
        )
    return Html("".join(drawn))


def grid(scale: Scale) -> Html:
    return Html(
        "".join(
            f'<path class="grid" d="M0 {scale.y(value):.1f}H{WIDTH}"/>' for value in _ticks(scale)
        )
    )


def _ticks(scale: Scale) -> list[float]:
    if scale.logarithmic:
        count = round(math.log10(scale.top / scale.low))
        every = math.ceil(count / _TICKS)
        return [scale.low * 10**power for power in range(0, count + 1, every)]
    if scale.low < 0:
        return sorted({scale.low, 0.0, scale.top})
    return [scale.top * part / 2 for part in range(3)]


def number(value: float) -> str:
    """A number as short as a person wants it."""
    if value < 0:
        return f"-{number(-value)}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1000 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def svg(content: str, height: int = HEIGHT, kind: str = "") -> Html:
    return Html(
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none"'
        f' aria-hidden="true">{content}</svg>'
    )


def chart(
    title: str,
    unit: str,
    scale: Scale,
    drawing: str,
    legend: Sequence[tuple[str, str]],
    x_axis: str,
) -> Html:
    """A figure with axes, `x_axis` as `axis` makes it; the legend's entries: a class and a word."""
    labels = "".join(
        f'<span style="top:{scale.y(value):.0f}%">{number(value)}</span>' for value in _ticks(scale)
    )
    keys = "".join(f'<span><i class="{kind}"></i>{escape(word)}</span>' for kind, word in legend)
    return Html(
        f"<figure><figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>"
        f'<div class="plot"><div class="y">{labels}</div>{svg(grid(scale) + drawing)}</div>'
        f'{x_axis}<div class="legend">{keys}</div></figure>'
    )


def time_axis(duration_s: float) -> Html:
    """The axis of something that took so long."""
    return axis([time_text(duration_s * part / _TICKS, duration_s) for part in range(_TICKS + 1)])


def axis(texts: Iterable[str]) -> Html:
    """Words below a plot, spread over its width."""
    return Html(f'<div class="x">{"".join(f"<span>{escape(text)}</span>" for text in texts)}</div>')


def time_text(seconds: float, duration_s: float) -> str:
    """A moment of a run, as exactly as its length makes sensible."""
    if duration_s >= 600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    if duration_s >= 20:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if duration_s >= 2 else f"{seconds * 1000:.4g} ms"


def lane(marks: str, kinds: Mapping[str, str]) -> Html:
    """One row by bucket: each mark's class; neighbours that are alike are one piece."""
    step = WIDTH / max(1, len(marks))
    drawn = []
    start = 0
    for index in range(1, len(marks) + 1):
        if index == len(marks) or marks[index] != marks[start]:
            kind = kinds.get(marks[start])
            if kind:
                drawn.append(
                    f'<rect class="fill {kind}" x="{start * step:.1f}" y="1"'
                    f' width="{(index - start) * step:.1f}" height="8"/>'
                )
            start = index
    return svg("".join(drawn), 10, "lane")
