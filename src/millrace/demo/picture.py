"""Draws the demo: rates above, Spark's lag below, the failure and the recovery through both."""

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter

from millrace.demo.timeline import Timeline
from millrace.errors import UsageError

SIZE_INCHES: Final = (11.0, 6.5)
DOTS_PER_INCH: Final = 150
PADDING_INCHES: Final = 0.15
BINS: Final = 50
BIN_S_MIN: Final = 0.1
MARGIN: Final = 1.02  # After the last event.
HEADROOM: Final = 1.4  # Of the upper panel, for the labels.
LABEL_ROWS: Final = (0.94, 0.86, 0.78)  # In parts of its height.
LABEL_WIDTH: Final = 0.3  # In parts of its width, at most.

APPENDS: Final = "#2563eb"
SPARK: Final = "#ea580c"
LAG: Final = "#7c3aed"
KILLED: Final = "#dc2626"
RECOVERED: Final = "#15803d"
GRID: Final = "#e5e7eb"
INK: Final = "#1f2937"

Mark = tuple[float, str, str]  # When, what, in which colour.


def draw(timeline: Timeline, title: str, subtitle: str, path: Path) -> None:
    layout = ConstrainedLayoutEngine(w_pad=PADDING_INCHES, h_pad=PADDING_INCHES)
    figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout=layout)
    FigureCanvasAgg(figure)
    rates, lag = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _write_title(rates, title, subtitle)
    end_s = MARGIN * max(timeline.lag()[-1][0], *(at_s for at_s, _, _ in _marks(timeline)))
    _draw_rates(rates, timeline, end_s)
    _draw_lag(lag, timeline, end_s)
    for axes in (rates, lag):
        _dress(axes)
        for at_s, _, colour in _marks(timeline):
            axes.axvline(at_s, color=colour, linewidth=1.4, linestyle=(0, (4, 2)), zorder=4)
    _label_marks(rates, timeline, end_s)
    lag.set_xlim(0, end_s)
    lag.set_xlabel("time in seconds")
    try:
        figure.savefig(path, format="png")
    except OSError as problem:
        raise UsageError(f"the picture cannot be written: {problem}; use --picture") from problem


def _write_title(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=17, fontweight="bold", color=INK, pad=34)
    axes.annotate(
        subtitle,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 14),
        textcoords="offset points",
        fontsize=11,
        color=INK,
    )


def _draw_rates(axes: Axes, timeline: Timeline, end_s: float) -> None:
    appends = timeline.append_rate(max(BIN_S_MIN, end_s / BINS))
    axes.stairs(appends.values, appends.edges_s, fill=True, color=APPENDS, alpha=0.22)
    axes.stairs(appends.values, appends.edges_s, color=APPENDS, linewidth=1.3, label="appended")
    spark = timeline.input_rate()
    axes.stairs(
        spark.values, spark.edges_s, color=SPARK, linewidth=1.8, label="taken in by Spark", zorder=3
    )
    axes.set_ylim(0, HEADROOM * max([*appends.values, *spark.values]))
    axes.set_ylabel("records per second")
    # Above the panel: inside it there is always a curve or a label in the way.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1.1), ncols=2, frameon=False)


def _draw_lag(axes: Axes, timeline: Timeline, end_s: float) -> None:
    points = [*timeline.lag(), (end_s, 0)]
    times_s, behind = zip(*points, strict=True)
    axes.fill_between(times_s, behind, step="post", color=LAG, alpha=0.22, linewidth=0)
    axes.step(times_s, behind, where="post", color=LAG, linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("Spark's lag in records")


def _marks(timeline: Timeline) -> list[Mark]:
    """The kill first, the end of the recovery last."""
    killed_s = timeline.killed_s
    marks = [(killed_s, f"SIGKILL to node {timeline.killed}", KILLED)]
    if timeline.resumed_s is not None:
        resumed_ms = (timeline.resumed_s - killed_s) * 1000
        marks.append((timeline.resumed_s, f"appends go on after {resumed_ms:.0f} ms", RECOVERED))
    restored_after_s = timeline.restored_s - killed_s
    restored = f"third copy restored after {restored_after_s:.1f} s"
    marks.append((timeline.restored_s, restored, RECOVERED))
    return [(at_s - timeline.started_s, text, colour) for at_s, text, colour in marks]


def _label_marks(axes: Axes, timeline: Timeline, end_s: float) -> None:
    """A row for each.  The first two lines are close together, so both labels stand left of them
    if there is room."""
    killed, *resumed, restored = _marks(timeline)
    is_early = killed[0] < LABEL_WIDTH * end_s
    for mark, height in zip((killed, *resumed), LABEL_ROWS, strict=False):
        _label(axes, mark, mark[0] if is_early else killed[0], height, is_left=not is_early)
    is_late = restored[0] > (1 - LABEL_WIDTH) * end_s
    height = LABEL_ROWS[-1] if is_early or is_late else LABEL_ROWS[0]
    _label(axes, restored, restored[0], height, is_left=is_late)


def _label(axes: Axes, mark: Mark, at_s: float, height: float, *, is_left: bool) -> None:
    axes.annotate(
        mark[1],
        (at_s, height),
        xycoords=("data", "axes fraction"),
        xytext=(-6 if is_left else 6, 0),
        textcoords="offset points",
        ha="right" if is_left else "left",
        va="center",
        fontsize=10.5,
        color=mark[2],
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
        zorder=5,
    )


def _dress(axes: Axes) -> None:
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.tick_params(colors=INK)
