"""Draws a dashboard of Grafana from what a Prometheus has seen. Enters: URL, dashboard, seconds until now, text to leave out. Leaves: SVG.

python3 ci/kubernetes/dashboard.py http://127.0.0.1:9490 dashboard.json 240 'e2e-1-' >dashboard.svg
"""

import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from html import escape

COLOURS = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642", "#cca300")
UNIT, HEIGHT, STEP_S = 50, 32, 5
SCALES = {
    "bytes": (1024, ("B", "KiB", "MiB", "GiB")),
    "Bps": (1024, ("B/s", "KiB/s", "MiB/s", "GiB/s")),
    "s": (1000, ("s",)),
    "µs": (1000, ("µs", "ms", "s")),
    "ops": (1000, ("/s",)),
}


def asked(server, expression, begin, end):
    """The series of a range, each with its labels."""
    query = {"query": expression, "start": begin, "end": end, "step": STEP_S}
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{urllib.parse.urlencode(query)}", timeout=60) as answer:
        return json.load(answer)["data"]["result"]


def shown(value, unit):
    """A number as Grafana writes it."""
    factor, names = SCALES.get(unit, (1000, ("", "K", "M")))
    at = 0
    while abs(value) >= factor and at + 1 < len(names):
        value, at = value / factor, at + 1
    if unit == "s" and 0 < abs(value) < 1:
        value, names, at = value * 1000, ("ms",), 0
    space = " " if names[at] and not names[at].startswith("/") else ""
    return f"{value:.3g}{space}{names[at]}"


def ceiling(value):
    """The next number that reads well: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return next(it * power for it in (1, 2, 5, 10) if it * power >= value * 0.999)


def panel(it, series, begin, end):
    """One panel: title, axis, lines, legend."""
    place, unit = it["gridPos"], it.get("fieldConfig", {}).get("defaults", {}).get("unit")
    left, top, wide, high = place["x"] * UNIT + 4, place["y"] * HEIGHT + 4, place["w"] * UNIT - 8, place["h"] * HEIGHT - 8
    x0, x1, y0 = left + 68, left + wide - 12, top + 34
    rows = [series[at : at + 3] for at in range(0, min(len(series), 9), 3)]
    y1 = top + high - 26 - 16 * len(rows)
    numbers = [(name, [(float(at), float(value)) for at, value in values if value not in ("NaN", "+Inf")]) for name, values in series]
    most = ceiling(max((value for _, points in numbers for _, value in points), default=0))
    out = [
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" rx="3" fill="#181b1f" stroke="#2c3235"/>',
        f'<text x="{left + 10}" y="{top + 20}" class="title">{escape(it["title"])}</text>',
    ]
    for part in range(5):
        y = y1 - (y1 - y0) * part / 4
        out.append(f'<path d="M{x0} {y:.1f}H{x1}" stroke="#2c3235"/><text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{shown(most * part / 4, unit)}</text>')
    for part in range(5):
        x, seconds = x0 + (x1 - x0) * part / 4, (end - begin) * part / 4
        out.append(f'<text x="{x:.1f}" y="{y1 + 16:.1f}" text-anchor="middle">{int(seconds // 60)}:{int(seconds % 60):02}</text>')
    for at, (name, points) in enumerate(numbers):
        colour, line, last = COLOURS[at % len(COLOURS)], "", None
        for when, value in points:
            x, y = x0 + (x1 - x0) * (when - begin) / (end - begin), y1 - (y1 - y0) * value / most
            line += f"{'L' if last and when - last <= STEP_S * 1.5 else 'M'}{x:.1f} {y:.1f}"
            last = when
        out.append(f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        row, column = divmod(at, 3)
        if row < len(rows):
            x, y = left + 14 + column * (wide - 20) / 3, y1 + 34 + 16 * row
            out.append(f'<rect x="{x:.1f}" y="{y - 5:.1f}" width="12" height="3" fill="{colour}"/><text x="{x + 17:.1f}" y="{y:.1f}">{escape(name[:34])}</text>')
    if not any(points for _, points in numbers):
        out.append(f'<text x="{(x0 + x1) / 2:.1f}" y="{(y0 + y1) / 2:.1f}" text-anchor="middle" class="title">No data</text>')
    return out


def main():
    server, path, seconds, left_out = sys.argv[1:]
    with open(path) as file:
        dashboard = json.load(file)
    end = int(time.time())
    begin = end - int(seconds)
    wide = max(it["gridPos"]["x"] + it["gridPos"]["w"] for it in dashboard["panels"]) * UNIT
    high = max(it["gridPos"]["y"] + it["gridPos"]["h"] for it in dashboard["panels"]) * HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11" fill="#9fa7b3">',
        "<style>.title{font-size:14px;fill:#d8d9da}</style>",
        f'<rect width="{wide}" height="{high}" fill="#111217"/>',
    ]
    for it in dashboard["panels"]:
        series = []
        for target in it["targets"]:
            expression = target["expr"].replace("$__rate_interval", "20s").replace("$volume", ".*")
            for found in asked(server, expression, begin, end):
                labels = found["metric"]
                name = re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), target.get("legendFormat", ""))
                series.append((name.replace(left_out, "") if left_out else name, found["values"]))
        out += panel(it, series, begin, end)
    print("\n".join([*out, "</svg>"]))


main()
