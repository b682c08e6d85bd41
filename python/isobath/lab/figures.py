"""Figures of the reports' pages, as matplotlib draws them.

Each function returns a `matplotlib.figure.Figure`: a notebook shows it, and its `savefig`
writes it. Needs `pip install isobath[lab]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isobath._errors import InvalidArgument
from isobath._needs import module
from isobath.lab._frames import pandas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from isobath.lab._advice import Advice
    from isobath.lab._bench import Benchmark
    from isobath.lab._drive import Models, Profile

__all__ = [
    "advice",
    "analysis",
    "benchmark",
    "cleaning",
    "cost_map",
    "heat_map",
    "model",
    "predictions",
    "probe",
    "raw",
]

#: Inches of one chart.
_WIDTH, _HEIGHT = 5.4, 3.6
#: Lines that one chart has at most.
_LINES = 12
#: Columns and rows of a cost map, and drives' worth of the largest point up to which it goes.
_COST_STEPS, _COST_SCALE = 8, 10.0
#: What `raw` varies, and the words for it.
_RAW_AXES = {
    "depth": "I/Os in flight per thread",
    "page_bytes": "bytes of an I/O",
    "read_percent": "reads, %",
    "threads": "threads",
    "random_percent": "random I/Os, %",
}
_RAW_LINES = ["backend", "model", *_RAW_AXES]


def _charts(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of so many charts, two beside each other."""
    figures = module("matplotlib.figure", "lab", "isobath.lab.figures")
    columns = min(2, max(count, 1))
    lines = -(-max(count, 1) // columns)
    figure: Figure = figures.Figure(
        figsize=(_WIDTH * columns, _HEIGHT * lines), layout="constrained"
    )
    grid: list[Axes] = list(figure.subplots(lines, columns, squeeze=False).flat)
    for empty in grid[count:]:
        empty.set_axis_off()
    return figure, grid[:count]


def _check(rows: DataFrame, columns: Iterable[str], what: str) -> None:
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        raise InvalidArgument(f"{what} has no column {', '.join(missing)}")
    if rows.empty:
        raise InvalidArgument(f"{what} has no rows")


def _varying(rows: DataFrame, columns: Iterable[str]) -> list[str]:
    """The columns with more than one value."""
    return [name for name in columns if name in rows.columns and rows[name].nunique() > 1]


def _groups(rows: DataFrame, by: Sequence[str]) -> list[tuple[str, DataFrame]]:
    """The rows of each combination of values, with its name."""
    if not by:
        return [("", rows)]
    groups = []
    for key, part in rows.groupby(list(by), sort=True, dropna=False):
        values = key if isinstance(key, tuple) else (key,)
        groups.append((", ".join(_word(name, value) for name, value in zip(by, values)), part))
    return groups[:_LINES]


def _word(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    words = name.removesuffix("_ratio").removeprefix("setting_").replace("_", " ")
    return f"{words} {_tick(value)}"


def _legend(axes: Axes) -> None:
    lines, _ = axes.get_legend_handles_labels()
    if lines:
        axes.legend(fontsize="small")


def _lines(
    axes: Axes,
    rows: DataFrame,
    x: str,
    y: str,
    by: Sequence[str],
    *,
    marker: str = "o",
    step: bool = False,
) -> None:
    for name, part in _groups(rows, by):
        part = part.dropna(subset=[x, y]).sort_values(x)
        style: Any = {"drawstyle": "steps-post"} if step else {}
        axes.plot(part[x], part[y], marker=marker, markersize=4, label=name or None, **style)
    _legend(axes)


def raw(rows: DataFrame) -> Figure:
    """I/Os per second, MB per second and latencies over what `isobath.lab.raw` has varied.

    Figures 2 to 6 and 11 of paper 001.
    """
    _check(rows, ["ios_per_s", "mb_per_s", "depth"], "the frame of `raw`")
    varied = _varying(rows, _RAW_AXES) or ["depth"]
    x = varied[0]
    by = [name for name in _varying(rows, _RAW_LINES) if name != x]
    values = ["ios_per_s", "mb_per_s"]
    values += [name for name in ("read_latency_p99_us", "cpu_us_per_io") if name in rows.columns]
    words = {
        "ios_per_s": "I/Os per second",
        "mb_per_s": "MB per second",
        "read_latency_p99_us": "99th percentile of reads, µs",
        "cpu_us_per_io": "CPU per I/O, µs",
    }
    figure, grid = _charts(len(values))
    for axes, value in zip(grid, values):
        _lines(axes, rows, x, value, by)
        axes.set(title=words[value], xlabel=_RAW_AXES[x], ylim=(0, None))
        if x in ("depth", "page_bytes", "threads"):
            axes.set_xscale("log", base=2)
    return figure


def probe(profile: Profile) -> Figure:
    """A profile: rates of reads and writes over I/O size for each k, and the drive over time."""
    points = profile.points
    _check(points, ["throughput_pages_per_s"], "the profile")
    points["k"] = points["threads"] * points["queue_depth"]
    points["mb_per_s"] = points["throughput_pages_per_s"] * 4096 / 1e6
    figure, grid = _charts(4)
    for axes, (name, part) in zip(
        grid,
        [
            ("reads", points[points["read_share"] >= 1]),
            ("writes", points[points["read_share"] <= 0]),
        ],
    ):
        for usable, marker in ((True, "o"), (False, "x")):
            some = part[part["usable"] == usable]
            drawn = axes.scatter(
                some["io_pages"], some["mb_per_s"], c=some["k"], marker=marker, norm="log"
            )
            if usable and not some.empty:
                figure.colorbar(drawn, ax=axes, label="I/Os in flight")
        axes.set(title=f"{name} (×: set aside)", xlabel="pages per I/O", ylabel="MB per second")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    sentinels = profile.sentinels
    for column in sentinels.columns.drop("at_s", errors="ignore"):
        if sentinels[column].notna().any():
            label = str(column).removesuffix("_pages_per_s").replace("_", " ")
            label = "small" if label == "throughput" else label
            grid[2].plot(sentinels["at_s"], sentinels[column], marker=".", label=label)
    grid[2].set(title="sentinels", xlabel="probing, s", ylabel="pages per second", ylim=(0, None))
    _legend(grid[2])
    latencies = (
        points.dropna(subset=["latency_us_p99"]) if "latency_us_p99" in points else points[:0]
    )
    for name, part in (
        ("reads", latencies[latencies["read_share"] >= 1]),
        ("writes", latencies[latencies["read_share"] <= 0]),
    ):
        grid[3].scatter(part["k"], part["latency_us_p99"], label=name)
    grid[3].set(title="99th percentile of latencies, µs", xlabel="I/Os in flight")
    grid[3].set_xscale("log", base=2)
    grid[3].set_yscale("log")
    _legend(grid[3])
    return figure


def model(models: Models, kind: str | None = None) -> Figure:
    """The page of `isobath model`: points over a model's curves (Figures 1, 2 and 4 of paper 000),
    costs by k (Figure 3), errors of all models, residuals, lines of equal throughput.
    """
    numpy = module("numpy", "lab", "isobath.lab.figures")
    kind = kind or models.chosen
    names = ["concurrency", "random_share", "io_pages", "read_share", "pages_per_s"]
    samples = pandas().DataFrame(models.profile.predictor.samples(), columns=names)
    figure, grid = _charts(6)
    for axes, title, share in ((grid[0], "reads", 1.0), (grid[1], "writes", 0.0)):
        _curves(axes, models, kind, samples[samples["read_share"] == share], share)
        axes.set(title=f"{title}: points over {kind}")
    lines = models.lines
    for name, part in lines.groupby("operation"):
        for cost in ("setup_us", "transfer_us"):
            label = f"{name}, {cost.removesuffix('_us')}"
            grid[2].plot(part["concurrency"], part[cost], marker="o", markersize=4, label=label)
    grid[2].set(title="costs by k (Table 2), µs", xlabel="I/Os in flight")
    _logarithmic(grid[2])
    table = models.table.dropna(subset=["held_out_median"])
    places = numpy.arange(len(table))
    grid[3].barh(places, table["held_out_p90"] * 100, color="lightgray", label="90th percentile")
    grid[3].barh(places, table["held_out_median"] * 100, height=0.4, label="median")
    grid[3].set_yticks(places, labels=[str(name) for name in table["kind"]])
    grid[3].set(title="errors on held-out points, %")
    grid[3].set_xscale("log")
    _legend(grid[3])
    residuals = models.residuals
    if not residuals.empty:
        for name, part in (
            ("reads", residuals[residuals["point_read_share"] >= 1]),
            ("writes", residuals[residuals["point_read_share"] <= 0]),
            ("mixed", residuals[residuals["point_read_share"].between(0, 1, inclusive="neither")]),
        ):
            grid[4].scatter(part["throughput_pages_per_s"], part["ratio"], label=name, s=14)
    grid[4].axhline(1, color="gray", linewidth=0.8)
    grid[4].set(title="predicted / measured, each without itself", xlabel="pages per second")
    _logarithmic(grid[4])
    _contours(grid[5], models, kind, samples)
    return figure


def predictions(models: Models, kinds: Sequence[str]) -> Figure:
    """Points of reads and writes over the curves of models (Figures 2 and 4 of paper 000)."""
    names = ["concurrency", "random_share", "io_pages", "read_share", "pages_per_s"]
    samples = pandas().DataFrame(models.profile.predictor.samples(), columns=names)
    figure, grid = _charts(2 * len(kinds))
    for at, axes in enumerate(grid):
        kind, share = kinds[at // 2], 1.0 - at % 2
        _curves(axes, models, kind, samples[samples["read_share"] == share], share)
        axes.set(title=f"{kind}: {'reads' if share else 'writes'}")
    return figure


def _logarithmic(axes: Axes) -> None:
    if axes.has_data():
        axes.set_xscale("log")
        axes.set_yscale("log")
    _legend(axes)


def _curves(axes: Axes, models: Models, kind: str | None, samples: DataFrame, share: float) -> None:
    numpy = module("numpy", "lab", "isobath.lab.figures")
    axes.set(xlabel="pages per I/O, the inverse of r (×: sequential)", ylabel="pages per second")
    if samples.empty:
        return
    low, high = samples["io_pages"].min(), samples["io_pages"].max()
    pages = numpy.geomspace(low, high if high > low else 2 * low, 40)
    for at, (k, part) in enumerate(list(samples.groupby("concurrency"))[:_LINES]):
        colour = f"C{at}"
        label = f"k = {k:g}"
        for is_random, marker in ((True, "o"), (False, "x")):
            some = part[(part["random_share"] > 0) == is_random]
            axes.scatter(some["io_pages"], some["pages_per_s"], color=colour, s=14, marker=marker)
        if kind is not None:
            curve = models.predict(k, io_pages=pages, read_share=share, kind=kind)
            axes.plot(pages, curve["pages_per_s"], color=colour, linewidth=1, label=label)
    _logarithmic(axes)


def _contours(axes: Axes, models: Models, kind: str | None, samples: DataFrame) -> None:
    numpy = module("numpy", "lab", "isobath.lab.figures")
    axes.set(title="reads, MB per second", xlabel="I/Os in flight", ylabel="pages per I/O")
    reads = samples[samples["read_share"] >= 1]
    if kind is None or reads.empty:
        return
    ks, pages = (
        numpy.geomspace(reads[name].min(), max(reads[name].max(), 2 * reads[name].min()), 16)
        for name in ("concurrency", "io_pages")
    )
    x, y = numpy.meshgrid(ks, pages)
    rates = models.predict(x, io_pages=y, kind=kind)["mb_per_s"].to_numpy().reshape(x.shape)
    lines = axes.contour(x, y, rates, levels=8)
    axes.clabel(lines, fontsize="small")
    _logarithmic(axes)


#: What `sim clean` varies, and the words for it.
_CLEANING_AXES = {
    "fill_ratio": "fill factor",
    "skew": "skew of the updates",
    "sort_buffer_segments": "sort buffer, segments",
}


def cleaning(rows: DataFrame) -> Figure:
    """The page of `isobath sim clean`: Wamp over what was varied (Figures 3 to 5 of paper 003),
    over the run, and how empty segments were when they were cleaned.
    """
    _check(
        rows, ["policy", "workload", "fill_ratio", "wamp_steady_ratio"], "the frame of `sim_clean`"
    )
    rows = rows.copy()
    # `hot-cold:0.8`: the law, and its first number.
    parts = rows["workload"].str.split(":", n=2)
    rows["law"] = parts.str[0]
    rows["skew"] = pandas().to_numeric(parts.str[1], errors="coerce")
    drawn: list[Callable[[Axes], None]] = []
    measured = rows.dropna(subset=["wamp_steady_ratio"])
    for x, words in _CLEANING_AXES.items():
        others = [name for name in ("workload", *_CLEANING_AXES) if name not in (x, "skew")]
        if x == "skew":
            others = ["law", "fill_ratio", "sort_buffer_segments"]
        for name, part in _groups(measured, others):
            if part[x].nunique() > 1:
                drawn.append(_over(part, x, f"Wamp over {words}: {name}", words))
    if not drawn:
        drawn.append(lambda axes: _bars(axes, measured))
    if "wamp_series_ratio" in rows.columns:
        drawn.append(lambda axes: _over_the_run(axes, measured))
    if "emptiness_histogram_count" in rows.columns:
        drawn.append(lambda axes: _emptiness(axes, measured))
    figure, grid = _charts(len(drawn))
    for axes, draw in zip(grid, drawn):
        draw(axes)
    return figure


#: Of each table of `isobath sim analysis`: what is drawn over what, with the words for it.
_ANALYSIS: dict[str, tuple[str, dict[str, str], str]] = {
    "equation-4": (
        "fill_ratio",
        {
            "wamp_ratio": "equation (4)",
            "paper_wamp_ratio": "the paper",
        },
        "Wamp of uniform updates (Table 1 of paper 003)",
    ),
    "hot-cold": (
        "hot_updates_ratio",
        {
            "min_cost_ratio": "slack shared at best",
            "hot60_cost_ratio": "60% of it to hot data",
            "hot40_cost_ratio": "40% of it to hot data",
        },
        "cost of hot and cold data apart (Table 2 of paper 003)",
    ),
    "bound": (
        "fill_ratio",
        {"wamp_bound_ratio": "fluid bound", "wamp_uniform_ratio": "uniform updates"},
        "Wamp",
    ),
}


def analysis(tables: Mapping[str, DataFrame]) -> Figure:
    """The page of `isobath sim analysis`: a chart of each table, of `bound` one for each workload."""
    drawn: list[tuple[DataFrame, str, dict[str, str], str]] = []
    for name, rows in tables.items():
        if name not in _ANALYSIS:
            raise InvalidArgument(f"`sim_analysis` has no table {name}")
        x, lines, title = _ANALYSIS[name]
        _check(rows, [x, *lines], f"the table {name}")
        by = ["workload"] if "workload" in rows.columns else []
        for group, part in _groups(rows, by):
            drawn.append((part.sort_values(x), x, lines, " of ".join(filter(None, [title, group]))))
    figure, grid = _charts(len(drawn))
    for axes, (rows, x, lines, title) in zip(grid, drawn):
        for column, words in lines.items():
            axes.plot(rows[x].to_numpy(), rows[column].to_numpy(), marker=".", label=words)
        axes.set(xlabel=x, ylim=(0, None))
        axes.set_title(title, fontsize="medium", wrap=True)
        _legend(axes)
    return figure


def _over(rows: DataFrame, x: str, title: str, words: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        _lines(axes, rows, x, "wamp_steady_ratio", ["policy"])
        if "wamp_bound_ratio" in rows.columns:
            bound = rows.groupby(x)["wamp_bound_ratio"].first().dropna()
            if not bound.empty:
                style: Any = {"linestyle": "--", "color": "gray", "label": "fluid bound"}
                axes.plot(bound.index.to_numpy(), bound.to_numpy(), **style)
                _legend(axes)
        axes.set(xlabel=words, ylabel="Wamp", ylim=(0, None))
        axes.set_title(title, fontsize="medium", wrap=True)

    return draw


def _named(rows: DataFrame) -> list[tuple[str, Any]]:
    varied = _varying(rows, ["policy", "workload", "fill_ratio", "sort_buffer_segments"])
    names = []
    for _, row in rows.head(_LINES).iterrows():
        words = [_word(name, row[name]) for name in varied or ["policy"]]
        names.append((", ".join(words), row))
    return names


def _bars(axes: Axes, rows: DataFrame) -> None:
    named = _named(rows)
    axes.bar([name for name, _ in named], [row["wamp_steady_ratio"] for _, row in named])
    axes.set(title="Wamp: extra writes per user write", ylabel="Wamp")
    axes.tick_params("x", rotation=30)


def _over_the_run(axes: Axes, rows: DataFrame) -> None:
    for name, row in _named(rows):
        if isinstance(row["wamp_series_ratio"], list):
            axes.plot(row["wamp_series_ratio"], linewidth=1, label=name)
    axes.set(title="Wamp over the run", xlabel="run, %", ylabel="Wamp", ylim=(0, None))
    _legend(axes)


def _emptiness(axes: Axes, rows: DataFrame) -> None:
    for name, row in _named(rows):
        counts = row["emptiness_histogram_count"]
        if isinstance(counts, list) and sum(counts) > 0:
            axes.plot([count / sum(counts) for count in counts], linewidth=1, label=name)
    axes.set(title="emptiness of cleaned segments", xlabel="obsolete, %", ylabel="share")
    _legend(axes)


#: What a sweep of benchmarks varies, and the words for it.
_BENCH_AXES = {
    "data_bytes": "data, bytes",
    "clients_count": "clients",
    "setting_workers": "workers",
    "setting_medium_over_provisioning": "over-provisioned share",
    "setting_rate_per_s": "offered, operations per second",
}


def benchmark(bench: Benchmark) -> Figure:
    """The page of `isobath bench`: rates over time with write amplification and space, latencies,
    rates beside the drive's limit, and over what was varied.
    """
    runs = bench.runs
    _check(runs, ["operations_per_s"], "the benchmark")
    samples, latencies = bench.samples, bench.latencies
    varied = _varying(runs, ["engine", "workload", *_BENCH_AXES, "setting_medium_state", "round"])
    names = [
        ", ".join(_word(name, row[name]) for name in varied) or "run" for _, row in runs.iterrows()
    ]
    drawn: list[Callable[[Axes], None]] = [lambda axes: _rates(axes, runs, names)]
    for column, title in {
        "operations_per_s": "operations per second",
        "wa_a": "WA-A: bytes to the drive per user byte, cumulative",
        "wa_d": "WA-D: flash bytes per byte to the drive, cumulative",
        "space_bytes": "space, bytes",
    }.items():
        if column in samples.columns and samples[column].notna().any():
            drawn.append(_over_time(samples, column, title, names))
    if not latencies.empty:
        drawn.append(lambda axes: _distribution(axes, latencies, names))
    for x in _varying(runs, _BENCH_AXES):
        drawn.append(_swept(runs, x))
    figure, grid = _charts(len(drawn))
    for axes, draw in zip(grid, drawn):
        draw(axes)
    return figure


def _rates(axes: Axes, runs: DataFrame, names: list[str]) -> None:
    places = list(range(len(runs)))
    axes.barh(places, runs["operations_per_s"])
    limits = [name for name in runs.columns if str(name).startswith("drive_reads_per_s")]
    for place, (_, row) in zip(places, runs.iterrows()):
        found = [row[name] for name in limits if isinstance(row[name], (int, float))]
        if found and max(found) > 0:
            axes.plot([max(found)] * 2, [place - 0.4, place + 0.4], color="black", linestyle=":")
    axes.set_yticks(places, labels=names, fontsize="small")
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(
        module("matplotlib.ticker", "lab", "figures").EngFormatter(sep="")
    )
    axes.set(title="operations per second (dotted: the drive's random reads)")


def _over_time(
    samples: DataFrame, column: str, title: str, names: list[str]
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for run, part in list(samples.groupby("run"))[:_LINES]:
            axes.plot(part["seconds"], part[column], linewidth=1, label=names[int(str(run))])
        axes.set(title=title, xlabel="s", ylim=(0, None))
        _legend(axes)

    return draw


def _distribution(axes: Axes, latencies: DataFrame, names: list[str]) -> None:
    for run, part in list(latencies.groupby("run"))[:_LINES]:
        axes.plot(part["latency_us"], part["share"], linewidth=1, label=names[int(str(run))])
    axes.set(title="latency: share of calls at or below", xlabel="µs", ylim=(0, 1))
    axes.set_xscale("log")
    _legend(axes)


def _swept(runs: DataFrame, x: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        others = [
            "engine",
            "workload",
            *_BENCH_AXES,
            "setting_medium_profile",
            "setting_medium_state",
        ]
        by = [name for name in _varying(runs, others) if name != x]
        _lines(axes, runs, x, "operations_per_s", by)
        axes.set(title="operations per second", xlabel=_BENCH_AXES[x], ylim=(0, None))

    return draw


def advice(advised: Advice) -> Figure:
    """The page of `isobath advise`: what it predicts of both engines."""
    predicted = advised.predicted
    _check(predicted, ["operations_per_s"], "the advice")
    charts = {
        "operations_per_s": "operations per second, 90%",
        "read_latency_us_p99": "99th percentile of reads, µs",
        "write_amplification": "write amplification",
        "space_amplification": "space amplification",
        "cpu_us_per_operation": "CPU per operation, µs",
        "endurance_years": "years of the drive",
    }
    shown = [name for name in charts if name in predicted.columns and predicted[name].notna().any()]
    figure, grid = _charts(len(shown))
    for axes, name in zip(grid, shown):
        axes.bar(predicted["engine"], predicted[name].astype(float), color=["C0", "C1"])
        axes.set(title=charts[name])
    low, high = predicted["operations_per_s_low"], predicted["operations_per_s_high"]
    if low.notna().all():
        rate = predicted["operations_per_s"]
        grid[0].errorbar(
            predicted["engine"], rate, yerr=[rate - low, high - rate], color="black", fmt="none"
        )
    return figure


def cost_map(runs: DataFrame, first: str, other: str, *, by: str = "engine") -> Figure:
    """The cost map of `isobath bench`: drives that two sides need, over data and rate.

    A run is a point: one drive serves so much data at such a rate, and data is split evenly over
    drives. Modelled from the runs, not measured (paper 002, Figures 7c and 9). Runs that were
    offered a rate are left out: they do not say what an engine can serve.
    """
    _check(runs, [by, "data_bytes", "operations_per_s"], "the runs")
    numpy = module("numpy", "lab", "isobath.lab.figures")
    rates = runs["operations_per_s"]
    if "modelled_operations_per_s" in runs.columns:
        rates = runs["modelled_operations_per_s"].fillna(rates)
    points = runs.assign(rate=rates)[(runs["data_bytes"] > 0) & (rates > 0)]
    if "setting_rate_per_s" in points.columns:
        points = points[points["setting_rate_per_s"].isna()]
    for side in (first, other):
        if not (points[by] == side).any():
            raise InvalidArgument(f"no run of {by} {side!r} says what it can serve")
    steps = numpy.arange(1, _COST_STEPS + 1) / _COST_STEPS * _COST_SCALE
    data = steps * points["data_bytes"].max()
    rate = steps * points["rate"].max()

    def drives(side: str) -> Any:
        each = [
            numpy.maximum(
                numpy.ceil(data / point["data_bytes"])[None, :],
                numpy.ceil(rate / point["rate"])[:, None],
            )
            for _, point in points[points[by] == side].iterrows()
        ]
        return numpy.minimum.reduce(each)

    needed, others = drives(first), drives(other)
    figure, grid = _charts(1)
    axes = grid[0]
    # Blue where the first side needs fewer drives, red where the other one does.
    axes.imshow(
        numpy.sign(needed - others), origin="lower", aspect="auto", cmap="coolwarm", vmin=-2, vmax=2
    )
    for y, x in numpy.ndindex(needed.shape):
        text = f"{needed[y, x]:.0f}/{others[y, x]:.0f}"
        axes.text(x, y, text, ha="center", va="center", fontsize="xx-small")
    engineering = module("matplotlib.ticker", "lab", "isobath.lab.figures").EngFormatter(sep="")
    places = numpy.arange(_COST_STEPS)
    axes.set_xticks(places, labels=[engineering(value) for value in data])
    axes.set_yticks(places, labels=[engineering(value) for value in rate])
    axes.tick_params("x", rotation=45)
    axes.set(
        title=f"drives needed, modelled: {first} / {other}",
        xlabel="bytes of data",
        ylabel="operations per second",
    )
    return figure


def heat_map(
    rows: DataFrame, x: str, y: str, value: str, *, by: str | None = None, title: str = ""
) -> Figure:
    """A value over two columns, a map for each value of `by`; the median where rows coincide."""
    _check(rows, [x, y, value, *([by] if by else [])], "the frame")
    numpy = module("numpy", "lab", "isobath.lab.figures")
    groups = [(str(name), part) for name, part in rows.groupby(by)] if by else [("", rows)]
    low, high = rows[value].min(), rows[value].max()
    figure, grid = _charts(len(groups))
    for axes, (name, part) in zip(grid, groups):
        table = part.pivot_table(index=y, columns=x, values=value, aggfunc="median")
        drawn = axes.imshow(
            table.to_numpy(dtype=float), origin="lower", aspect="auto", vmin=low, vmax=high
        )
        axes.set_xticks(
            numpy.arange(len(table.columns)), labels=[_tick(one) for one in table.columns]
        )
        axes.set_yticks(numpy.arange(len(table.index)), labels=[_tick(one) for one in table.index])
        axes.tick_params("x", rotation=45)
        axes.set(title=" ".join(filter(None, [title, name])), xlabel=x, ylabel=y)
        figure.colorbar(drawn, ax=axes, label=value)
    return figure


def _tick(value: object) -> str:
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:g}"
