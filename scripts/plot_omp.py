#!/usr/bin/env python3
"""Draws a log of isobath_omp as SVG: scripts/plot_omp.py LOG.csv > LOG.svg"""

import csv
import sys
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT = 720, 130, 64, 12
CHARTS = [
    ("MiB/s", [("mib_per_s", "#1f6fb4")], None),
    ("processors and memory, share", [("cpu", "#d1662a"), ("memory", "#2d8a4e")], 1.0),
    ("PC and PDA", [("pc", "#8a4fa3"), ("pda", "#b03a48")], None),
]


def chart(rows, top, title, lines, high):
    end = max(float(row["at_s"]) for row in rows) or 1.0
    high = high or max(float(row[name]) for row in rows for name, _ in lines) or 1.0
    bottom, area = top + HEIGHT - 24, HEIGHT - 48
    parts = [f'<text x="{LEFT}" y="{top + 14}">{escape(title)}: ']
    parts += [f'<tspan fill="{colour}">{name} </tspan>' for name, colour in lines]
    parts.append("</text>")
    for share in (0, 0.5, 1):
        y = bottom - share * area
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share * high:.4g}</text>')
    for name, colour in lines:
        points = []
        for row in rows:
            x = LEFT + float(row["at_s"]) / end * (WIDTH - LEFT - RIGHT)
            points.append(f'{x:.1f},{bottom - min(1, float(row[name]) / high) * area:.1f}')
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"/>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 16}" text-anchor="end">{end:.4g} s</text>')
    return "\n".join(parts)


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1], newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        sys.exit("error: the log has no measurements")
    height = HEIGHT * len(CHARTS)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">')
    print('<rect width="100%" height="100%" fill="white"/>')
    for at, (title, lines, high) in enumerate(CHARTS):
        print(chart(rows, at * HEIGHT, title, lines, high))
    print("</svg>")


if __name__ == "__main__":
    main()
