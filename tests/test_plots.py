"""Figures: what the SVG in a page holds, and that a slider has a frame for every combination."""

import html
import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations, count

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from bs4 import BeautifulSoup
from project import ROOT

from fedlib import plots


@pytest.fixture
def shown(monkeypatch):
    """Collect the HTML that is shown."""
    pages = []
    monkeypatch.setattr(plots, "display", lambda thing: pages.append(thing.data))
    return pages


def simple(title="a title"):
    fig, ax = plots.figure()
    ax.plot([0, 1], [0, 1], color=plots.BLUE)
    ax.set(title=title, xlabel="time (s)")
    return fig


def soup(page):
    return BeautifulSoup(page, "html.parser")


# One figure ------------------------------------------------------------------------------------------------


def test_a_figure_is_valid_svg_that_fits_its_column(shown):
    plots.show(simple(), alt="A rising line")
    (svg,) = re.findall(r"<svg.*?</svg>", shown[0], flags=re.S)
    root = ElementTree.fromstring(svg)
    assert "max-width:100%" in root.get("style") and root.get("viewBox")
    assert root.get("width") is None and root.get("height") is None
    assert "<metadata" not in svg and "<?xml" not in shown[0] and "<!DOCTYPE" not in shown[0]


def test_a_figure_is_described_for_those_who_cannot_see_it(shown):
    plots.show(simple(), alt='Losses < 1 & "small"', caption="On one hand < the other")
    page = soup(shown[0])
    (picture,) = page.select('[role="img"]')
    assert picture["aria-label"] == 'Losses < 1 & "small"'
    assert page.figcaption.text == "On one hand < the other"
    assert all(svg["aria-hidden"] == "true" for svg in page.select("svg"))


def test_without_a_caption_there_is_none(shown):
    plots.show(simple(), alt="A rising line")
    assert soup(shown[0]).figcaption is None


def test_text_stays_text_and_takes_the_colors_of_the_page(shown):
    plots.show(simple("Rounds until done"), alt="A rising line")
    page = soup(shown[0])
    assert "Rounds until done" in page.text and "time (s)" in page.text
    assert plots.INK not in shown[0] and "currentColor" in shown[0]
    assert f"var(--fed-blue, {plots.BLUE})" in shown[0]
    assert not re.search(r"fill: #ffffff|fill: white", shown[0]), "no white sheet on a dark page"
    assert "DejaVu" not in shown[0]


def test_a_page_run_again_gives_the_same_bytes(shown, monkeypatch):
    for _ in range(2):
        monkeypatch.setattr(plots, "_serial", count())  # a new session
        plots.show(simple(), alt="A rising line")
    assert shown[0] == shown[1]


def test_equal_figures_and_sliders_in_one_page_share_no_ids(shown):
    plots.show(simple(), simple(), alt="Two equal lines")
    for _ in range(2):
        plots.slider(lambda x: [simple()], alt="A line", x=[1, 2])
    ids = re.findall(r'\bid="([^"]+)"', "".join(shown))
    assert len(ids) == len(set(ids))


def test_text_added_after_the_axes_takes_the_color_of_the_page(shown):
    fig, ax = plots.figure()
    ax.text(0, 0, "a note")
    ax.plot([0, 1], [0, 1], label="a line")
    ax.legend()
    plots.show(fig, alt="A note")
    assert "#000000" not in shown[0] and "fill: #0" not in shown[0]


@pytest.mark.parametrize(
    "ticks, labels",
    [
        ((0.05, 0.1, 0.2), ["0.05", "0.1", "0.2"]),
        ((0.001, 0.01, 0.1), ["10⁻³", "10⁻²", "10⁻¹"]),
        ((1, 100, 1000), ["1", "100", "1000"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_written_in_one_way(shown, ticks, labels):
    fig, ax = plots.figure()
    ax.semilogx(ticks, [1, 2, 3])
    ax.set(xticks=ticks, yticks=[])
    ax.minorticks_off()
    plots.show(fig, alt="a line")
    assert [text.get_text().strip() for text in soup(shown[0]).select("svg text")] == labels


def test_nothing_to_show_is_an_error(shown):
    with pytest.raises(ValueError, match="at least one figure"):
        plots.show(alt="nothing")


@pytest.mark.parametrize("wrong", [None, 3, [], [simple, None]])
def test_a_frame_that_is_no_figure_is_refused_and_nothing_stays_open(shown, wrong):
    def draw(x):
        simple()
        return wrong

    with pytest.raises(TypeError, match="must return one figure or several"):
        plots.slider(draw, alt="A line", x=[1, 2])
    assert not plt.get_fignums() and not shown


@pytest.mark.parametrize("alt", ["a {y}", "a {", "a {0}"])
def test_braces_in_the_description_must_name_a_slider(shown, alt):
    with pytest.raises(ValueError, match="in braces"):
        plots.slider(lambda x: simple(), alt=alt, x=[1, 2])
    assert not plt.get_fignums()


def test_figures_in_one_page_share_no_ids(shown):
    plots.show(simple("one"), simple("two"), alt="Two rising lines")
    ids = re.findall(r'\bid="([^"]+)"', shown[0])
    assert len(ids) == len(set(ids)) > 0
    for target in re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', shown[0]):
        assert target in ids, "a clip path or marker that is nowhere"


def test_the_same_picture_twice_in_a_figure_shares_no_id(shown):
    fig, axes = plots.figure(ncols=2)
    for ax in axes:
        ax.imshow(np.arange(12.0).reshape(2, 2, 3) / 12, interpolation="none")
    plots.show(fig, alt="two equal pictures")
    page = soup(shown[0])
    ids = [element["id"] for element in page.select("[id]")]
    assert len(page.select("image")) == 2 and len(ids) == len(set(ids))


def test_figures_are_closed_once_shown(shown):
    before = plt.get_fignums()
    plots.show(simple(), simple(), alt="Two rising lines")
    assert plt.get_fignums() == before


def test_the_readers_own_style_is_left_alone(shown):
    kept = dict(matplotlib.rcParams)
    plots.show(simple(), alt="A rising line")
    assert dict(matplotlib.rcParams) == kept


# Colors ----------------------------------------------------------------------------------------------------


def linear(color):
    rgb = np.array(matplotlib.colors.to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(color):
    return linear(color) @ [0.2126, 0.7152, 0.0722]


def contrast(one, two):
    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", plots.COLORS)
def test_colors_stand_out_from_paper_and_from_night(name):
    assert contrast(plots.COLORS[name], "#ffffff") >= 3
    assert contrast(plots.COLORS[name], "#14181e") >= 3


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
COLOR_BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def lab(linear):
    """Return CIE L*a*b* of linear RGB under D65."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    t = to_xyz @ np.clip(linear, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def dark_colors():
    css = (ROOT / "book" / "_static" / "fedlib.css").read_text()
    return dict(re.findall(r"--fed-(\w+): (#[0-9a-f]{6});", css))


def test_the_dark_page_replaces_every_color():
    assert dark_colors().keys() == plots.COLORS.keys()
    assert all(contrast(color, "#14181e") >= 4.5 for color in dark_colors().values())


@pytest.mark.parametrize("matrix", COLOR_BLINDNESS.values(), ids=COLOR_BLINDNESS)
@pytest.mark.parametrize("colors", [plots.COLORS, dark_colors()], ids=["light", "dark"])
def test_colors_stay_apart_for_the_color_blind(colors, matrix):
    """A distance of 2.3 in L*a*b* is just noticeable; every two colors keep four times that."""
    for one, two in combinations(colors, 2):
        seen = [lab(np.array(matrix) @ linear(colors[name])) for name in (one, two)]
        assert np.linalg.norm(seen[0] - seen[1]) > 9.2, f"{one} and {two} look alike"


# Sliders ---------------------------------------------------------------------------------------------------


def two_parameters(shown, **options):
    drawn = []

    def draw(rate, local_epochs):
        drawn.append((rate, local_epochs))
        return simple(f"rate {rate} epochs {local_epochs}")

    plots.slider(
        draw,
        alt="A line for {rate} and {local_epochs} epochs, long enough",
        rate=[0.1, 0.25, 0.5],
        local_epochs=[1, 5],
        **options,
    )
    return drawn, soup(shown[0])


def test_every_combination_has_its_frame_and_its_description(shown):
    drawn, page = two_parameters(shown)
    assert drawn == [(0.1, 1), (0.1, 5), (0.25, 1), (0.25, 5), (0.5, 1), (0.5, 5)]
    frames = page.select(".fed-frame")
    for frame, (rate, epochs) in zip(frames, drawn, strict=True):
        assert f"rate {rate} epochs {epochs}" in frame.text
        assert frame.select_one('[role="img"]')["aria-label"].startswith(
            f"A line for {rate} and {epochs} epochs"
        )


def test_one_frame_is_visible_the_middle_one_unless_told(shown):
    _, page = two_parameters(shown)
    (visible,) = [frame for frame in page.select(".fed-frame") if not frame.has_attr("hidden")]
    assert "rate 0.25 epochs 5" in visible.text
    assert [output.text for output in page.select("output")] == ["0.25", "5"]
    shown.clear()
    _, page = two_parameters(shown, start={"rate": 0.5, "local_epochs": 1})
    (visible,) = [frame for frame in page.select(".fed-frame") if not frame.has_attr("hidden")]
    assert "rate 0.5 epochs 1" in visible.text


def test_each_parameter_has_a_labeled_slider(shown):
    _, page = two_parameters(shown)
    inputs = page.select('input[type="range"]')
    assert [(i["min"], i["max"], i["value"]) for i in inputs] == [("0", "2", "1"), ("0", "1", "1")]
    assert [i["aria-label"] for i in inputs] == ["rate", "local epochs"]
    labels = json.loads(re.search(r"labels = (\[.*?\]\]);", shown[0])[1])
    assert labels == [["0.1", "0.25", "0.5"], ["1", "5"]]


def test_two_sliders_in_a_page_do_not_move_each_other(shown):
    two_parameters(shown)
    plots.slider(lambda x: simple(f"other {x}"), alt="Another line with x = {x}, and long enough", x=[1, 2])
    ids = [soup(page).select_one(".fed-slider")["id"] for page in shown]
    assert len(set(ids)) == 2
    for page, uid in zip(shown, ids, strict=True):
        assert f'getElementById("{uid}")' in page and "document.querySelector" not in page


def test_a_slider_needs_nothing_from_elsewhere(shown):
    two_parameters(shown)
    addresses = set(re.findall(r"https?://[^\s\"')]+", html.unescape(shown[0])))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "names, not requests"


def test_a_frame_may_hold_several_figures(shown):
    plots.slider(lambda x: (simple(), simple(f"x {x}")), alt="Two lines for x = {x}, long enough", x=[1, 2])
    assert [len(frame.select("svg")) for frame in soup(shown[0]).select(".fed-frame")] == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "at least one parameter"),
        ({"x": []}, "at least one value"),
        ({"x": range(15), "y": range(15)}, "225 frames"),
        ({"x": [1, 2], "start": {"x": 3}}, "x=3 is not one of the values"),
        ({"x": [1, 2], "start": {"z": 1}}, "start names 'z'"),
    ],
)
def test_a_slider_that_cannot_be_drawn_is_refused(shown, options, message):
    with pytest.raises(ValueError, match=message):
        plots.slider(lambda **_: simple(), alt="A line", **options)
    assert not shown


# Lines -----------------------------------------------------------------------------------------------------


def test_lines_are_labeled_at_their_ends():
    fig, ax = plots.figure()
    plots.lines(ax, [0, 1, 2], [[1, 2, 3], [3, 2, 5]], ["up", "down and up"])
    assert [(text.get_text(), text.xy) for text in ax.texts] == [("up", (2, 3)), ("down and up", (2, 5))]
    assert [text.get_color() for text in ax.texts] == [line.get_color() for line in ax.lines]
    plt.close(fig)


def test_a_band_is_mean_and_sample_sd_over_seeds():
    fig, ax = plots.figure()
    runs = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]])
    plots.band(ax, [0, 1], runs, "runs", plots.GREEN)
    assert np.allclose(ax.lines[0].get_ydata(), [3, 3])
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    sd = np.sqrt([(4 + 0 + 4) / 2, (1 + 9 + 4) / 2])
    assert heights.max() == pytest.approx((3 + sd).max()) and heights.min() == pytest.approx((3 - sd).min())
    assert [text.get_text() for text in ax.texts] == ["runs"]
    plots.band(ax, [0, 1], runs, "unlabeled", plots.BLUE, end=False)
    assert len(ax.texts) == 1
    plt.close(fig)


def test_labels_are_spread_by_as_little_as_needed():
    assert plots.spread([0.2, 0.9, 0.5], 0.1).tolist() == [0.2, 0.9, 0.5]
    np.testing.assert_allclose(plots.spread([0.5, 0.5, 0.52, 0.1], 0.1), [0.5067 - 0.1, 0.5067, 0.5067 + 0.1, 0.1], atol=1e-4)
    moved = plots.spread(np.random.default_rng(0).uniform(size=20), 0.04)
    assert np.diff(np.sort(moved)).min() > 0.04 - 1e-12
    assert plots.spread([], 0.1).shape == (0,)
