"""Draw who ran when as an SVG picture: time from left to right, a lane for each list.

Each column of a lane is a bar of how the list spent that time: at the bottom the part in which the engine computed it,
above it the part in which it had a seat while others were computed, on top the part in which it waited without a seat.
White is the rest: it had no request."""

import colorsys
import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from scheduler.timeline import Lane, Spans, Timeline

MAX_LANES = 60
"""More lists than these are not drawn: half of the lanes show those that ran most, half those of the others that waited
longest."""

_LEFT, _PLOT, _RIGHT = 130, 880, 190
_TOP, _LANE, _BAR, _BOTTOM = 74, 20, 16, 44
_COLUMN = 2
_NUM_COLUMNS = _PLOT // _COLUMN
_WAITED = "#f2a99d"
_INK, _FAINT = "#222222", "#d8d8d8"


def draw(timeline: Timeline, title: str) -> str:
    """Return the picture as the text of an SVG file."""
    lanes = _chosen(timeline.lanes)
    start_s, length_s = timeline.start_s, timeline.last_s - timeline.start_s or 1.0
    plot_bottom = _TOP + _LANE * len(lanes)
    width, height = _LEFT + _PLOT + _RIGHT, plot_bottom + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
        *_legend(len(timeline.lanes) - len(lanes)),
        *_axis(start_s, length_s, plot_bottom),
    ]
    for index, lane in enumerate(lanes):
        parts += _draw_lane(lane, _hue(index), _TOP + _LANE * index, start_s, length_s)
    return "\n".join([*parts, "</svg>", ""])


def _chosen(lanes: list[Lane]) -> list[Lane]:
    """The lists that are drawn, in order of their names, numbers as numbers."""
    ordered = sorted(lanes, key=_place)
    if len(ordered) <= MAX_LANES:
        return ordered
    by_ran = sorted(ordered, key=lambda lane: -lane.ran.total_s)[: MAX_LANES // 2]
    others = [lane for lane in ordered if lane not in by_ran]
    by_wait = sorted(others, key=lambda lane: -lane.seatless.longest_s)[: MAX_LANES - len(by_ran)]
    return sorted(by_ran + by_wait, key=_place)


def _place(lane: Lane) -> list[tuple[int, str]]:
    return [(int(digits or -1), text) for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", lane.name)]


def _draw_lane(lane: Lane, hue: float, top: int, start_s: float, length_s: float) -> Iterator[str]:
    base = top + _LANE - 2
    ran = _filled(lane.ran, start_s, length_s)
    seated = _filled(lane.seated, start_s, length_s)
    seatless = _filled(lane.seatless, start_s, length_s)
    yield f'<path d="M{_LEFT},{base}.5h{_PLOT}" stroke="{_FAINT}"/>'
    # From back to front, each covering the lower part of the one before.
    layers = (
        ([max(s, r) + w for s, r, w in zip(seated, ran, seatless, strict=True)], _WAITED),
        ([max(s, r) for s, r in zip(seated, ran, strict=True)], _colour(hue, 0.84, 0.55)),
        (ran, _colour(hue, 0.38, 0.65)),
    )
    for heights, colour in layers:
        if any(heights):
            yield f'<path d="{_outline(heights, base)}" fill="{colour}"/>'
    yield f'<text x="{_LEFT - 8}" y="{base - 3}" text-anchor="end">{escape(_shortened(lane.name))}</text>'
    right = _LEFT + _PLOT
    yield f'<text x="{right + 60}" y="{base - 3}" text-anchor="end">{lane.ran.total_s / length_s:.1%}</text>'
    yield f'<text x="{right + 150}" y="{base - 3}" text-anchor="end">{lane.seatless.longest_s:.2f} s</text>'


def _filled(spans: Spans, start_s: float, length_s: float) -> list[float]:
    """For each column the part of its time, 0 … 1, that the spans cover."""
    columns = [0.0] * _NUM_COLUMNS
    for from_s, to_s in spans:
        left = (from_s - start_s) / length_s * _NUM_COLUMNS
        right = min((to_s - start_s) / length_s * _NUM_COLUMNS, _NUM_COLUMNS)
        column = int(left)
        while left < right:
            edge = min(column + 1, right)
            columns[column] += edge - left
            left = edge
            column += 1
    return columns


def _outline(shares: Sequence[float], base: int) -> str:
    """The path around a row of bars that stand on `base`. Equal neighbours are drawn as one."""
    path = [f"M{_LEFT},{base}"]
    tops = (base - round(2 * min(share, 1.0) * _BAR) / 2 for share in shares)
    for top, columns in groupby(tops):
        path.append(f"V{top:g}h{_COLUMN * sum(1 for _ in columns)}")
    return "".join([*path, f"V{base}Z"])


def _legend(num_left_out: int) -> Iterator[str]:
    entries = ((_colour(0.6, 0.38, 0.65), "computed"), (_colour(0.6, 0.84, 0.55), "seated, another's turn"))
    x = _LEFT
    for colour, meaning in (*entries, (_WAITED, "waits without a seat")):
        yield f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="45">{meaning}</text>'
        x += 40 + 7 * len(meaning)
    if num_left_out:
        yield f'<text x="{x}" y="45">and {num_left_out:,} more lists that ran less and waited less</text>'
    right = _LEFT + _PLOT
    yield f'<text x="{right + 60}" y="{_TOP - 8}" text-anchor="end" font-size="11">computed</text>'
    yield f'<text x="{right + 150}" y="{_TOP - 8}" text-anchor="end" font-size="11">longest wait</text>'


def _axis(start_s: float, length_s: float, bottom: int) -> Iterator[str]:
    step_s = _tick_step(length_s)
    digits = max(0, -math.floor(math.log10(step_s)))
    for number in range(math.ceil(start_s / step_s - 1e-9), math.floor((start_s + length_s) / step_s + 1e-9) + 1):
        x = _LEFT + (number * step_s - start_s) / length_s * _PLOT
        yield f'<path d="M{x:.1f},{_TOP}V{bottom + 4}" stroke="{_FAINT}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number * step_s:.{digits}f}</text>'
    yield f'<text x="{_LEFT + _PLOT / 2:g}" y="{bottom + 36}" text-anchor="middle">seconds</text>'


def _tick_step(length_s: float) -> float:
    """A round number of seconds of which about ten make `length_s`."""
    magnitude = 10.0 ** math.floor(math.log10(length_s / 10))
    return next(step for step in (magnitude, 2 * magnitude, 5 * magnitude, 10 * magnitude) if length_s / step <= 12)


def _hue(index: int) -> float:
    """Hues far from their neighbours' and from the red that means waiting."""
    return 0.12 + 0.76 * (index * 0.618034 % 1)


def _colour(hue: float, lightness: float, saturation: float) -> str:
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _shortened(name: str) -> str:
    return name if len(name) <= 17 else name[:16] + "…"
