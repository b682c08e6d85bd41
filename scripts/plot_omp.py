#!/usr/bin/env python3
"""Draws measurements of isobath_omp as SVG.

    scripts/plot_omp.py LOG.csv > LOG.svg                  a session's log
    scripts/plot_omp.py use NAME=FILE.csv ... > use.svg    processors and memory over time, as evaluate_omp.py samples them
    scripts/plot_omp.py cdf NAME=FILE.us ... > cdf.svg     distributions of latencies, one number of microseconds per line"""

import csv
import math
import sys
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT = 720, 130, 64, 12
COLOURS = ("#1f6fb4", "#d1662a", "#2d8a4e", "#8a4fa3", "#b03a48", "#7a6a20")
LOG_CHARTS = [
    ("MiB/s", ("mib_per_s",), None),
    ("processors and memory, share", ("cpu", "memory"), 1.0),
    ("PC and PDA", ("pc", "pda"), None),
]


class Chart:
    """Lines of one chart: names, each with its points."""

    def __init__(self, title, series, high=None, unit="s", is_log=False):
        self.title, self.series, self.unit, self.is_log = title, series, unit, is_log
        self.high = high or max((y for _, points in series for _, y in points), default=0) or 1.0

    def draw(self, top):
        bottom, area = top + HEIGHT - 24, HEIGHT - 48
        xs = [x for _, points in self.series for x, _ in points] or [0.0]
        # On a scale of logarithms, nothing is below a microsecond.
        scale = (lambda x: math.log10(max(x, 1.0))) if self.is_log else float
        begin = scale(min(xs)) if self.is_log else 0.0
        length = scale(max(xs)) - begin or 1.0
        parts = [f'<text x="{LEFT}" y="{top + 14}">{escape(self.title)}: ']
        names = [(name, COLOURS[at % len(COLOURS)]) for at, (name, _) in enumerate(self.series)]
        parts += [f'<tspan fill="{colour}">{escape(name)} </tspan>' for name, colour in names]
        parts.append("</text>")
        for share in (0, 0.5, 1):
            y = bottom - share * area
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share * self.high:.4g}</text>')
        for (_, colour), (_, line) in zip(names, self.series):
            points = []
            for x, y in line:
                x = LEFT + (scale(x) - begin) / length * (WIDTH - LEFT - RIGHT)
                points.append(f"{x:.1f},{bottom - min(1, y / self.high) * area:.1f}")
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"/>')
        if self.is_log:
            parts.append(f'<text x="{LEFT}" y="{bottom + 16}">{min(xs):.4g} {self.unit}</text>')
            for power in range(math.ceil(begin), math.floor(begin + length) + 1):
                x = LEFT + (power - begin) / length * (WIDTH - LEFT - RIGHT)
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom - area}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 16}" text-anchor="end">{max(xs):.4g} {self.unit}</text>')
        return "\n".join(parts)


def svg(charts):
    """A picture of charts below each other."""
    size = f'viewBox="0 0 {WIDTH} {HEIGHT * len(charts)}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">']
    lines.append('<rect width="100%" height="100%" fill="white"/>')
    lines += [chart.draw(at * HEIGHT) for at, chart in enumerate(charts)]
    return "\n".join([*lines, "</svg>", ""])


def distribution(values):
    """Points of the share of values that are no larger; at most some 500."""
    values = sorted(values)
    step = max(1, len(values) // 500)
    points = [(value, (at + 1) / len(values)) for at, value in enumerate(values)]
    return [*points[:-1:step], *points[-1:]]


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def log_charts(path):
    rows = rows_of(path)
    if not rows:
        sys.exit("error: the log has no measurements")
    lines = lambda names: [(name, [(float(row["at_s"]), float(row[name])) for row in rows]) for name in names]
    return [Chart(title, lines(names), high) for title, names, high in LOG_CHARTS]


def use_charts(path, what):
    """Busy processors, and MiB of the process and of its control group, over time."""
    rows = [{name: float(value) for name, value in row.items()} for row in rows_of(path)]
    busy = []
    for before, row in zip(rows, rows[1:]):
        busy.append((row["at_s"], (row["cpu_s"] - before["cpu_s"]) / max(row["at_s"] - before["at_s"], 1e-3)))
    memory = [("the process", [(row["at_s"], row["rss_mib"]) for row in rows])]
    if any(row["group_mib"] for row in rows):
        memory.append(("its control group, page cache included", [(row["at_s"], row["group_mib"]) for row in rows]))
    return [Chart(f"{what}: processors", [("busy", busy)]), Chart(f"{what}: MiB", memory)]


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit(__doc__)
    what, named = arguments[0], [argument.rpartition("=") for argument in arguments[1:]]
    if what == "use" and named:
        charts = [chart for name, _, path in named for chart in use_charts(path, name)]
    elif what == "cdf" and named:
        series = []
        for name, _, path in named:
            with open(path, encoding="utf-8") as file:
                series.append((name or path, distribution([float(line) for line in file])))
        charts = [Chart("share of accesses", series, high=1.0, unit="µs", is_log=True)]
    elif len(arguments) == 1:
        charts = log_charts(what)
    else:
        sys.exit(__doc__)
    sys.stdout.write(svg(charts))


if __name__ == "__main__":
    main()
