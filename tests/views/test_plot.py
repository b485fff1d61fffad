"""Pictures, taken apart by hand."""

import json
import struct
import zlib

import numpy as np
import pytest

from covey.views import plot
from covey.views.plot import (
    COLOURS,
    PAPER,
    Canvas,
    Curve,
    draw,
    glyph,
    run_curves,
    save_curve,
    ticks,
)


def decoded(png):
    """The pixels; every chunk's length and CRC is right and nothing is left over."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", png, at + 8 + length)
        assert crc == zlib.crc32(kind + data)
        chunks.append((kind, data))
        at += 12 + length
    assert at == len(png)
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *form = struct.unpack(">IIBBBBB", chunks[0][1])
    assert form == [8, 2, 0, 0, 0]  # 8 bits, RGB
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()  # no filter
    return rows[:, 1:].reshape(height, width, 3)


def near(pixels, colour, least=8):
    """How many pixels are of a colour."""
    return int((abs(pixels.astype(int) - colour).max(axis=-1) <= least).sum())


def test_a_picture_has_its_size_and_is_mostly_paper():
    pixels = decoded(draw([], "title", "steps", 300, 200))
    assert pixels.shape == (200, 300, 3)
    assert near(pixels, PAPER) > 0.8 * 300 * 200


def test_there_is_colour_where_the_line_is():
    x = np.linspace(0, 100, 20)
    pixels = decoded(draw([Curve("up", x, x), Curve("down", x, 100 - x)], "t", "x"))
    up, down = COLOURS[:2]
    left, right, top, bottom = 80, 870, 50, 460
    inner = pixels[top + 60 : bottom, left:right]  # below the legend
    h, w = (top + bottom) // 2 - (top + 60), inner.shape[1] // 2  # where they cross
    assert near(inner[h:, :w], up) > 100  # bottom left
    assert near(inner[:h, w:], up) > 50
    assert near(inner[h:, w:], up) + near(inner[:h, :w], up) < 100
    assert near(inner[h:, w:], down) > 100
    assert (
        near(pixels[:top], up) + near(pixels[bottom + 5 :], up) + near(pixels[:, : left - 5], up)
        == 0
    )


def test_a_spread_is_a_pale_band():
    x = np.linspace(0, 100, 20)
    pale = 0.85 * np.array(PAPER) + 0.15 * np.array(COLOURS[0])
    without = decoded(draw([Curve("c", x, x)], "t", "x"))
    band = decoded(draw([Curve("c", x, x, np.full(20, 30.0))], "t", "x"))
    assert near(band, pale, 3) > 20_000 > 100 > near(without, pale, 3)


@pytest.mark.parametrize("y", [0.0, 5.0, -3.0, 1e9, -1e-9, 1e17])
def test_a_flat_curve(y):
    x = np.linspace(0, 1000, 30)
    pixels = decoded(draw([Curve("flat", x, np.full(30, y))], "t", "x"))
    rows = (abs(pixels[130:460, 100:860].astype(int) - COLOURS[0]).max(-1) < 9).sum(axis=1)
    assert rows.max() > 700  # one row all across
    assert (rows > 0).sum() <= 4


@pytest.mark.parametrize(
    "curve",
    [
        Curve("none", np.zeros(0), np.zeros(0)),
        Curve("none", np.zeros(0), np.zeros(0), np.zeros(0)),
        Curve("one", np.array([5.0]), np.array([3.0])),
        Curve("one", np.array([5.0]), np.array([3.0]), np.array([2.0])),
        Curve("one", np.array([0.0]), np.array([0.0]), dots=True),
        Curve("same", np.array([5.0, 5.0]), np.array([1.0, 2.0]), np.array([1.0, 1.0])),
        Curve("steep", np.array([0.0, 1.0]), np.array([-1e9, 1e9])),
    ],
)
def test_small_and_strange_curves_are_drawn(curve):
    decoded(draw([curve], "t", "x", 400, 300))


def test_one_evaluation_is_a_dot():
    pixels = decoded(draw([Curve("e", np.array([5.0]), np.array([3.0]), dots=True)], "t", "x"))
    assert near(pixels[130:460, 80:880], COLOURS[0]) > 10


def test_more_curves_than_colours():
    x = np.arange(5.0)
    curves = [Curve(str(i), x, x + i) for i in range(8)]
    decoded(draw(curves, "t", "x"))


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 100_000, [0, 20_000, 40_000, 60_000, 80_000, 100_000]),
        (-5, 5, [-4, -2, 0, 2, 4]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 6, [0, 1, 2, 3, 4, 5, 6]),
        (0, 15, [0, 2.5, 5, 7.5, 10, 12.5, 15]),
        (9.5, 500, [100, 200, 300, 400, 500]),
        (3, 3, [3]),
        (4, 3, [4]),
    ],
)
def test_ticks_are_round(low, high, wanted):
    assert ticks(low, high) == pytest.approx(wanted)


def test_ticks_lie_inside_and_are_few():
    rng = np.random.default_rng(0)
    for _ in range(500):
        low = float(rng.normal() * 10 ** rng.uniform(-6, 6))
        high = low + float(10 ** rng.uniform(-3, 6))
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        slack = 1e-6 * (high - low)
        assert all(low - slack <= t <= high + slack for t in found)


def test_the_font_has_every_letter_and_a_sign_for_others():
    assert len(plot._font()) == 95
    assert all(len(letter) == 5 for letter in plot._font())
    assert len({glyph(chr(n)) for n in range(32, 127)}) == 95
    assert glyph(" ") == bytes(5)
    assert glyph("ü") == glyph("\n") == glyph("\x7f") == glyph("?")
    assert glyph("I")[2] == 0x7F  # a whole column
    assert glyph("-") == bytes([8] * 5)


def test_text_is_drawn_where_it_is_put():
    def ink(align):
        canvas = Canvas(100, 30)
        canvas.text(50, 10, "HHH", align=align)
        rows, columns = np.nonzero((decoded(canvas.png()) < 200).any(axis=-1))
        return rows.min(), rows.max(), columns.min(), columns.max()

    top, bottom, left, right = ink(0)
    assert 9 <= top <= bottom <= 21
    assert 49 <= left <= right <= 50 + 27
    assert ink(1)[3] <= 50
    middle = ink(0.5)
    assert abs((middle[2] + middle[3]) / 2 - 49) < 2


def test_what_lies_outside_is_cut_off():
    canvas = Canvas(20, 20)
    canvas.text(-90, 10, "outside")
    canvas.box(-50, -50, 5, 5, (0, 0, 0))
    canvas.box(15, 15, 500, 500, (0, 0, 0))
    canvas.line(np.array([-90.0, 90.0]), np.array([-90.0, 90.0]), (0, 0, 0))
    pixels = decoded(canvas.png())
    assert not pixels[:5, :5].any()
    assert not pixels[15:, 15:].any()
    assert (pixels[0, 19] == 255).all()


def test_half_a_pixel_is_grey():
    canvas = Canvas(4, 4)
    canvas.box(0, 0, 1 + 1 / 3, 4, (0, 0, 0))
    assert decoded(canvas.png())[0, :, 0].tolist() == [0, 170, 255, 255]


def metrics(folder, *rows):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_curves_of_a_run(tmp_path):
    folder = metrics(
        tmp_path / "run", {"env_steps": 5, "episodes": 0},
        {"env_steps": 10, "return_mean": 1.0, "return_std": 0.5, "eval_return_mean": 9.0},
        {"env_steps": 20, "return_mean": 2.0, "return_std": 0.25},
    )  # fmt: skip
    train, test = run_curves(folder, "a: ")
    assert (train.name, test.name) == ("a: training, last 100 episodes", "a: greedy evaluation")
    assert (train.x.tolist(), train.y.tolist(), train.spread.tolist()) == (
        [10, 20], [1, 2], [0.5, 0.25],
    )  # fmt: skip
    assert (test.x.tolist(), test.y.tolist(), test.dots) == ([10], [9], True)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"env_steps": 0}],
        [{"env_steps": 10, "return_mean": None, "return_std": None}],  # were not finite
        [
            {"env_steps": 10, "return_mean": 1.0, "return_std": 0.1, "eval_return_mean": None},
            {"env_steps": 20, "return_mean": None, "return_std": None, "eval_return_mean": 2.0},
        ],
    ],
)
def test_a_curve_is_saved_whatever_there_is(rows, tmp_path):
    path = save_curve(metrics(tmp_path / "run", *rows), "dqn (serial) on CartPole-v1, seed 1")
    assert path == tmp_path / "run" / "curve.png"
    decoded(path.read_bytes())
