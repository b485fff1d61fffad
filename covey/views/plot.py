"""Curves as PNG files: axes, lines, bands and a legend, with numpy and zlib alone.

A plotting library would weigh three times what all of covey may. Everything is drawn at three
times its size and averaged down, which smooths the lines.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from covey.metrics import read_metrics
from covey.types import Array
from covey.views.progress import short

SCALE = 3
INK, GRID, PAPER = (45, 50, 60), (225, 228, 232), (255, 255, 255)
COLOURS = (
    (31, 119, 180),
    (214, 95, 14),
    (44, 140, 60),
    (190, 40, 50),
    (120, 90, 170),
    (90, 90, 90),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y); with a spread, a band of y +- spread behind them."""

    name: str
    x: Array
    y: Array
    spread: Array | None = None
    dots: bool = False


class Canvas:
    """Pixels at three times the size."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.empty((height * SCALE, width * SCALE, 3), np.float32)
        self.pixels[:] = PAPER

    def box(
        self, x0: float, y0: float, x1: float, y1: float, colour: Any, alpha: float = 1
    ) -> None:
        """A filled rectangle."""
        rows = slice(max(0, round(y0 * SCALE)), max(0, round(y1 * SCALE)))
        columns = slice(max(0, round(x0 * SCALE)), max(0, round(x1 * SCALE)))
        area = self.pixels[rows, columns]
        area += alpha * (np.asarray(colour, np.float32) - area)

    def line(self, x: Array, y: Array, colour: Any, width: float = 2.0) -> None:
        """A polyline: a brush is put down at every third of a pixel."""
        for i in range(len(x) - 1):
            length = math.hypot(x[i + 1] - x[i], y[i + 1] - y[i])
            t = np.linspace(0, 1, max(2, int(length * SCALE)))
            self.dots(x[i] + t * (x[i + 1] - x[i]), y[i] + t * (y[i + 1] - y[i]), colour, width)

    def dots(self, x: Array, y: Array, colour: Any, width: float) -> None:
        """Discs."""
        radius = width * SCALE / 2
        reach = int(radius) + 1
        dy, dx = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        inside = dx**2 + dy**2 <= radius**2
        rows = (np.round(np.asarray(y) * SCALE).astype(int)[:, None] + dy[inside]).ravel()
        columns = (np.round(np.asarray(x) * SCALE).astype(int)[:, None] + dx[inside]).ravel()
        height, width_ = self.pixels.shape[:2]
        keep = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width_)
        self.pixels[rows[keep], columns[keep]] = colour

    def text(self, x: float, y: float, text: str, colour: Any = INK, align: float = 0) -> None:
        """5 by 7 letters at 1.5 times their size; `align` 0.5 centres on x, 1 ends there."""
        unit = 1.5
        x -= align * len(text) * 6 * unit
        for i, letter in enumerate(text):
            for column, bits in enumerate(glyph(letter)):
                for row in range(8):
                    if bits >> row & 1:
                        left, top = x + (i * 6 + column) * unit, y + row * unit
                        self.box(left, top, left + unit, top + unit, colour)

    def png(self) -> bytes:
        """Averaged down and encoded."""
        height, width = (n // SCALE for n in self.pixels.shape[:2])
        parts_of = (self.pixels[i::SCALE, j::SCALE] for i in range(SCALE) for j in range(SCALE))
        small = sum(parts_of) / SCALE**2
        rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row begins with its filter, none
        rows[:, 1:] = np.round(small).astype(np.uint8).reshape(height, -1)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in parts
        )


@cache
def _font() -> list[bytes]:
    text = (files("covey.views") / "font5x7.txt").read_text("ascii")
    return [bytes.fromhex(word) for word in text.split()]


def glyph(letter: str) -> bytes:
    """Five columns of eight dots, lowest bit on top."""
    number = ord(letter) - 32
    return _font()[number] if 0 <= number < len(_font()) else _font()[31]


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers between two others."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def draw(
    curves: list[Curve], title: str, across: str, width: int = 900, height: int = 520
) -> bytes:
    """A PNG of some curves over one axis."""
    canvas = Canvas(width, height)
    left, right, top, bottom = 80, width - 30, 50, height - 60
    curves = [c for c in curves if len(c.x)]
    x_low, x_high, y_low, y_high = _ranges(curves)

    def place(x: Array, y: Array) -> tuple[Array, Array]:
        return (
            left + (np.asarray(x, float) - x_low) / (x_high - x_low) * (right - left),
            bottom - (np.asarray(y, float) - y_low) / (y_high - y_low) * (bottom - top),
        )

    for value in ticks(y_low, y_high):
        _, y = place(np.array([x_low]), np.array([value]))
        canvas.box(left, y[0], right, y[0] + 1, GRID)
        canvas.text(left - 10, y[0] - 5, f"{value:.4g}", align=1)
    for value in ticks(x_low, x_high):
        x, _ = place(np.array([value]), np.array([y_low]))
        canvas.box(x[0], bottom, x[0] + 1, bottom + 5, INK)
        canvas.text(x[0], bottom + 12, short(value), align=0.5)
    for i, curve in enumerate(curves):
        _draw_curve(canvas, curve, place, COLOURS[i % len(COLOURS)], bottom)
        canvas.box(left + 14, top + 10 + 20 * i, left + 34, top + 13 + 20 * i, COLOURS[i % 6])
        canvas.text(left + 42, top + 6 + 20 * i, curve.name)
    canvas.box(left, bottom, right, bottom + 1, INK)
    canvas.text((left + right) / 2, 18, title, align=0.5)
    canvas.text((left + right) / 2, height - 22, across, align=0.5)
    return canvas.png()


def _ranges(curves: list[Curve]) -> tuple[float, float, float, float]:
    if not curves:
        return 0.0, 1.0, 0.0, 1.0
    x = np.concatenate([c.x for c in curves])
    edges = [c.y + s * (0 if c.spread is None else c.spread) for c in curves for s in (-1, 1)]
    y = np.concatenate(edges)
    low, high = float(y.min()), float(y.max())
    pad = 0.05 * (high - low or max(1.0, abs(high)))
    return 0.0, float(x.max()) or 1.0, low - pad, high + pad


def _draw_curve(canvas: Canvas, curve: Curve, place: Any, colour: Any, bottom: float) -> None:
    x, y = place(curve.x, curve.y)
    if curve.spread is not None:
        _, low = place(curve.x, curve.y - curve.spread)
        _, high = place(curve.x, curve.y + curve.spread)
        at = np.arange(math.ceil(x[0]), x[-1])
        for column, b, t in zip(at, np.interp(at, x, low), np.interp(at, x, high), strict=True):
            canvas.box(column, t, column + 1, min(b, bottom), colour, alpha=0.15)
    canvas.line(x, y, colour)
    if curve.dots:
        canvas.dots(x, y, colour, width=6)


def run_curves(folder: Path, label: str = "") -> list[Curve]:
    """Training and evaluation returns of a run, over env steps."""
    rows = read_metrics(folder / "metrics.jsonl")
    x, y, spread = _columns(rows, "env_steps", "return_mean", "return_std")
    seen_x, seen_y = _columns(rows, "env_steps", "eval_return_mean")
    return [
        Curve(f"{label}training, last 100 episodes", x, y, spread),
        Curve(f"{label}greedy evaluation", seen_x, seen_y, dots=True),
    ]


def _columns(rows: list[dict[str, Any]], *names: str) -> Array:
    """The rows that have all of these numbers, as one array each."""
    picked = [[row.get(name) for name in names] for row in rows]
    whole = [numbers for numbers in picked if None not in numbers]
    return np.array(whole, float).reshape(-1, len(names)).T


def save_curve(folder: Path, title: str) -> Path:
    """Write the run's curve.png."""
    path = folder / "curve.png"
    path.write_bytes(draw(run_curves(folder), title, "env steps"))
    return path
