"""The plot of docs/sizing.md: what the database needs, and what a fail-over leaves waiting. On white, so that it can be read on any
page."""

import math
from html import escape

COLOURS = {"pipe": "#d55e00", "pipe, pooled": "#0072b2", "service": "#009e73"}


def text(x, y, said, anchor="middle", size=13):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(said)}</text>'


def line(x1, y1, x2, y2, colour="#ddd", width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def plot(bought, waiting):
    """`bought`: the processors for each rate and way; `waiting`: (seconds since the database went, recipients that wait) of each."""
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 720" width="920" height="720" font-family="sans-serif" '
           'font-size="13" fill="#333">', '<rect width="100%" height="100%" fill="#fff"/>',
           "<title>What the database needs, and what a fail-over leaves waiting</title>",
           text(14, 26, "Processors that the database needs", "start", 16)]
    at = 300
    for way, colour in COLOURS.items():
        out += [f'<rect x="{at}" y="14" width="14" height="14" fill="{colour}"/>', text(at + 20, 26, way, "start")]
        at += 130
    left, right, top, bottom = 70, 890, 50, 320
    y = lambda cores: bottom - (bottom - top) * math.log2(cores) / 10
    for cores in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        out += [line(left, y(cores), right, y(cores)), text(left - 8, y(cores) + 4, str(cores), "end")]
    rates = sorted({rate for rate, _ in bought})
    for number, rate in enumerate(rates):
        middle = left + (number + 0.5) * (right - left) / len(rates)
        out.append(text(middle, bottom + 20, f"{rate:,} recipients a second"))
        for place, (way, colour) in enumerate(COLOURS.items()):
            cores, x = bought[rate, way]['database_cores'], middle - 105 + 70 * place
            out += [f'<rect x="{x}" y="{y(cores):.1f}" width="60" height="{bottom - y(cores):.1f}" fill="{colour}"/>',
                    text(x + 30, y(cores) - 6, str(cores))]
    out.append(text(14, 376, "Recipients that wait while the database is away for 15 s, and after it: 1,000 a second", "start", 16))
    top, bottom, until = 400, 680, 60
    most = max(many for way in COLOURS for _, many in waiting[1000, way])
    step = 10 ** math.floor(math.log10(most)) / (2 if most < 4 * 10 ** math.floor(math.log10(most)) else 1)
    x = lambda seconds: left + (right - left) * (seconds + 5) / (until + 5)
    y = lambda many: bottom - (bottom - top) * many / (1.05 * most)
    out.append(f'<rect x="{x(0):.1f}" y="{top}" width="{x(15) - x(0):.1f}" height="{bottom - top}" fill="#eee"/>')
    for number in range(int(1.05 * most / step) + 1):
        out += [line(left, y(number * step), right, y(number * step)), text(left - 8, y(number * step) + 4, f"{number * step:,.0f}", "end")]
    for seconds in range(0, until + 1, 5):
        out.append(text(x(seconds), bottom + 20, f"{seconds} s"))
    for way, colour in COLOURS.items():
        points = " ".join(f"{x(at):.1f},{y(many):.1f}" for at, many in waiting[1000, way] if -5 <= at <= until)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
