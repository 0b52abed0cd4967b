"""One look for every figure of the course, and figures that a reader can move without a kernel.

Figures are shown as inline SVG.  Text and axes take the color of the page around them (``currentColor``) and
the series take the page's CSS variables, so one figure reads well on white and on black.
"""

import hashlib
import io
import itertools
import json
import math
import re
from html import escape

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display
from matplotlib.figure import Figure

# Colors that stay apart for the color-blind and reach a contrast of 3:1 on white and on near-black.
# The book's style sheet may replace each by name; elsewhere these values are used.
COLORS = {
    "blue": "#0b72b5",
    "orange": "#d1570a",
    "green": "#0f8a64",
    "purple": "#a4559c",
    "gray": "#7d7f82",
}
BLUE, ORANGE, GREEN, PURPLE, GRAY = COLORS.values()
INK = "#010203"  # becomes currentColor

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": matplotlib.cycler(color=COLORS.values()),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "figure.constrained_layout.use": True,
    "figure.dpi": 72,
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "savefig.transparent": True,
    "svg.fonttype": "none",  # text stays text: smaller, sharp, and in the page's own font
    "svg.hashsalt": "fedlib",  # the same figure gives the same file
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
# For the whole session, not only while a figure is created: text that is added later must take the page's ink too.
matplotlib.rcParams.update(_STYLE)
_serial = itertools.count()  # tells equal figures on one page apart


def figure(width=6.2, height=3.4, **subplots):
    """Return a new figure and its axes in the course's style.

    Parameters
    ----------
    width, height : float
        Size in inches; a width of 6.2 fills the column, 3.4 lets two stand side by side.
    **subplots
        Passed to ``matplotlib.pyplot.subplots``.

    Returns
    -------
    figure, axes
    """
    return plt.subplots(figsize=(width, height), **subplots)


def show(*figures, alt, caption=None):
    """Show figures side by side (one below the other on a narrow screen) and close them.

    Parameters
    ----------
    *figures : matplotlib.figure.Figure
    alt : str
        What the picture shows, for readers who cannot see it.
    caption : str, optional
        A sentence below the picture.

    Raises
    ------
    ValueError
        Without a figure.
    """
    if not figures:
        raise ValueError("nothing to show: give at least one figure")
    display(HTML(_wrap(_picture(figures, alt), caption)))


def slider(draw, alt, caption=None, start=None, **values):
    """Show a figure under one slider for each parameter; it moves in a static page, without a kernel.

    Every combination of the values is drawn once, now, and stored in the page.

    Parameters
    ----------
    draw : callable
        ``draw(**one value of each)`` returns a figure, or several as a tuple or list.
    alt : str
        What the picture shows; ``{name}`` is replaced by the parameter's value.
    caption : str, optional
    start : dict, optional
        Value of each parameter at first; the middle one by default.
    **values : sequence
        The parameters and the values of their sliders; an underscore in a name is shown as a space.

    Raises
    ------
    ValueError
        Without a parameter, for an empty list of values, for a start that is not among the values, or for
        more than 200 combinations, which would make a heavy page; also if ``alt`` names something else in braces.
    TypeError
        If ``draw`` returns anything but figures.
    """
    values = {name: list(options) for name, options in values.items()}
    if not values or not all(values.values()):
        raise ValueError(f"give at least one parameter with at least one value, got {values}")
    names, combinations = list(values), list(itertools.product(*values.values()))
    if len(combinations) > 200:
        raise ValueError(f"{len(combinations)} frames are too heavy for a page: use at most 200")
    start = {name: options[len(options) // 2] for name, options in values.items()} | (start or {})
    for name, value in start.items():
        if name not in values:
            raise ValueError(f"start names {name!r}, but the sliders are {names}")
        if value not in values[name]:
            raise ValueError(f"start {name}={value!r} is not one of the values {values[name]}")

    settings = [dict(zip(names, combination, strict=True)) for combination in combinations]
    frames = [(setting == start, _frame(draw, alt, setting)) for setting in settings]
    display(HTML(_wrap(_slider_html(frames, values, start), caption)))


def lines(ax, x, ys, labels, colors=None, **style):
    """Draw lines and write each label at its line's right end, where no legend has to be decoded.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    x : sequence of shape [T]
    ys : sequence of shape [L, T]
    labels : sequence of L str
    colors : sequence of L colors, optional
    """
    colors = colors or list(COLORS.values())
    for y, label, color in zip(ys, labels, colors, strict=False):
        ax.plot(x, y, color=color, **style)
        label_end(ax, x[-1], y[-1], label, color)


def band(ax, x, runs, label, color, end=True):
    """Draw the mean of runs over seeds with a band of one standard deviation either way.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    x : sequence of shape [T]
    runs : ndarray of shape [R, T]
        One row a seed, at least two rows.
    label : str
    color : str
    end : bool
        Write the label at the line's end.
    """
    mean, sd = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    ax.fill_between(x, mean - sd, mean + sd, color=color, alpha=0.18, linewidth=0)
    ax.plot(x, mean, color=color)
    if end:
        label_end(ax, x[-1], mean[-1], label, color)


def heat_map(ax, table, xticklabels=None, yticklabels=None, **labels):
    """Draw a table of counts as cells, each the darker the larger its share of its row.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    table : ndarray of shape [N, C]
        Counts; a row without any stays empty.
    xticklabels, yticklabels : sequence of str, optional
        Names of the columns and rows; numbers by default.
    **labels
        Passed to ``ax.set``: ``xlabel``, ``ylabel``, ``title``.
    """
    rows, columns = table.shape
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    for (k, c), value in np.ndenumerate(share):
        # Opacity instead of a color map: pale cells then fade into the page, be it white or black.
        cell = plt.Rectangle((c - 0.46, k - 0.46), 0.92, 0.92, color=BLUE, alpha=0.06 + 0.94 * value, linewidth=0)
        ax.add_patch(cell)
    ax.grid(False)
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), **labels)
    ax.set_xticks(range(columns))
    ax.set_yticks(range(rows) if rows <= 20 else range(0, rows, 10))
    if xticklabels is not None:
        ax.set_xticklabels(xticklabels, rotation=40, ha="right")
    if yticklabels is not None:
        ax.set_yticklabels(yticklabels)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def label_end(ax, x, y, label, color, dy=0):
    """Write ``label`` right of the point (x, y), moved up by ``dy`` points."""
    ax.annotate(label, (x, y), xytext=(5, dy), textcoords="offset points", va="center", color=color,
                annotation_clip=False)  # fmt: skip


def spread(heights, gap):
    """Return ``heights`` (n,) moved apart by as little as makes neighbors at least ``gap`` apart; the order stays.

    For labels at the ends of lines that end close together.
    """
    heights = np.asarray(heights, dtype=float)
    order = np.argsort(heights, kind="stable")
    groups = []  # of neighboring labels: their mean height and their number
    for height in heights[order]:
        groups.append((height, 1))
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (above, many), (below, few) = groups.pop(), groups.pop()
            groups.append(((above * many + below * few) / (many + few), many + few))
    moved = np.empty(len(heights))
    moved[order] = [mean + gap * (i - (count - 1) / 2) for mean, count in groups for i in range(count)]
    return moved


def _label(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _wrap(body, caption):
    caption = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="fed-figure" style="margin:1em 0">{body}{caption}</figure>'


def _picture(figures, alt):
    svgs = "".join(_svg(figure) for figure in figures)
    style = "display:flex;flex-wrap:wrap;gap:1em;justify-content:center"
    return f'<div class="fed-picture" role="img" aria-label="{escape(alt, quote=True)}" style="{style}">{svgs}</div>'


def _frame(draw, alt, setting):
    """Draw one frame of a slider figure; whatever goes wrong, no figure stays open."""
    opened = set(plt.get_fignums())
    try:
        drawn = draw(**setting)
        drawn = tuple(drawn) if isinstance(drawn, (tuple, list)) else (drawn,)
        if not drawn or not all(isinstance(figure, Figure) for figure in drawn):
            raise TypeError(f"draw must return one figure or several, got {drawn!r:.80} for {setting}")
        try:
            described = alt.format(**{name: _label(value) for name, value in setting.items()})
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"alt may have only {list(setting)} in braces: {error}") from None
        return _picture(drawn, described)
    finally:
        for number in set(plt.get_fignums()) - opened:
            plt.close(number)


def _svg(figure):
    """Return a figure as an SVG element that fits any width and takes the page's colors, and close it."""
    buffer = io.StringIO()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) if axis.get_scale() == "log"):
        low, high = sorted(axis.get_view_interval())
        # 0.1 beside 0.05 stays 0.1; only a row of nothing but powers is written as powers.
        plain = any(low <= tick <= high and not _is_power_of_ten(tick) for tick in axis.get_majorticklocs())
        axis.set_major_formatter((lambda value, _: f"{value:g}") if plain else (lambda value, _: _power_of_ten(value)))
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    width = float(re.search(r'width="([\d.]+)pt"', svg).group(1))
    svg = re.sub(r'width="[\d.]+pt"|height="[\d.]+pt"', "", svg, count=2)
    pixels = round(width * 96 / 72)  # an inch is 72 points in the file and 96 pixels on a page
    svg = svg.replace("<svg", f'<svg aria-hidden="true" style="width:{pixels}px;max-width:100%;height:auto"', 1)
    # Equal pictures get equal ids, and nothing refers to them.
    svg = re.sub(r'(<image[^>]*?) id="[^"]*"', r"\1", svg)
    # Two figures in one page must not share ids, or the clip path of one would cut the other.
    prefix = f"f{next(_serial)}-{hashlib.sha256(svg.encode()).hexdigest()[:8]}"
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", svg).replace("inherit;", "sans-serif;")
    svg = svg.replace(INK, "currentColor")
    for name, color in COLORS.items():
        svg = svg.replace(color, f"var(--fed-{name}, {color})")
    return re.sub(r"\s*\n\s*", "\n", svg)


def _is_power_of_ten(value):
    return math.isclose(value, 10.0 ** round(math.log10(value)), rel_tol=1e-6)


def _power_of_ten(value):
    # Written with plain characters: formulas inside a figure would not take the page's font.
    exponent = round(math.log10(value))
    superscripts = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"{value:g}" if 0 <= exponent <= 3 else "10" + str(exponent).translate(superscripts)


def _slider_html(frames, values, start):
    pictures = "".join(f'<div class="fed-frame"{"" if now else " hidden"}>{picture}</div>' for now, picture in frames)
    uid = f"fed-{next(_serial)}-{hashlib.sha256(pictures.encode()).hexdigest()[:8]}"
    width = max(len(_label(option)) for options in values.values() for option in options)
    controls = "".join(
        f'<label style="display:flex;gap:.8em;align-items:center;max-width:34em;margin:.3em auto">'
        f'<span style="min-width:9em">{escape(name.replace("_", " "))} = '
        f'<output style="display:inline-block;min-width:{width}ch">{escape(_label(start[name]))}</output></span>'
        f'<input type="range" min="0" max="{len(options) - 1}" value="{options.index(start[name])}" '
        f'aria-label="{escape(name.replace("_", " "))}" style="flex:1;min-width:8em"></label>'
        for name, options in values.items()
    )
    labels = json.dumps([[_label(option) for option in options] for options in values.values()])
    script = f"""(function () {{
  var root = document.getElementById("{uid}"), labels = {labels};
  var frames = root.querySelectorAll(".fed-frame"), inputs = root.querySelectorAll("input");
  var outputs = root.querySelectorAll("output");
  function move() {{
    var frame = 0;
    inputs.forEach(function (input, i) {{
      frame = frame * labels[i].length + Number(input.value);
      outputs[i].textContent = labels[i][input.value];
      input.setAttribute("aria-valuetext", labels[i][input.value]);
    }});
    frames.forEach(function (node, i) {{ node.hidden = i !== frame; }});
  }}
  inputs.forEach(function (input) {{ input.addEventListener("input", move); }});
  move();
}})();"""
    return f'<div class="fed-slider" id="{uid}">{pictures}{controls}<script>{script}</script></div>'
