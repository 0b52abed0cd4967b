"""The built book in a real browser: every page, wide and narrow, light and dark."""

import functools
import http.server
import json
import os
import re
import shutil
import threading
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from bs4 import BeautifulSoup
from project import HTML, NOTEBOOKS, REPOSITORY, ROOT, between_chapters, colab_address, read, source, tagged

PAGES = (
    sorted(str(p.relative_to(HTML)) for p in HTML.rglob("*.html") if "_static" not in p.parts)
    if HTML.exists()
    else []
)
CONTENT = [page for page in PAGES if page.split("/")[0] in ("book", "notebooks")]
CHAPTERS = [f"notebooks/{path.stem}.html" for path in NOTEBOOKS]
WIDTHS = {"wide": 1280, "phone": 390}
MODES = ("light", "dark")


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        reason = "no Chromium: `apt-get install chromium` (Debian, Ubuntu) provides one"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to start for root, as in a container.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    """Serve the pages from a subfolder, as a project site does: an address from the root would fail."""
    assert PAGES, "there are no pages: run `make book` first"

    class Book(Quiet):
        def translate_path(self, path):
            path = unquote(path.split("?")[0].split("#")[0])
            inside = path.removeprefix("/course/")
            return str(HTML / inside) if path.startswith("/course/") else str(HTML / "outside-of-the-book")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Book) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/course/"
        server.shutdown()


class Visit:
    """One page in one window, with everything it complained about or asked for."""

    def __init__(self, browser, site, width=1280, mode="light"):
        self.site, self.mode, self.said, self.asked, self.missing = site, mode, [], [], []
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=mode, reduced_motion="reduce"
        )
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(15_000)
        self.tab.on("console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None)
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("requestfailed", self.failed)
        self.tab.on(
            "response", lambda r: self.missing.append(f"{r.status} {r.url}") if r.status >= 400 else None
        )

    def open(self, page):
        self.said.clear(), self.asked.clear(), self.missing.clear()
        self.tab.goto(self.site + page, wait_until="load")
        # Formulas are typeset after loading.
        self.tab.wait_for_function("!window.MathJax || (MathJax.startup && MathJax.startup.promise)")
        self.tab.evaluate("window.MathJax ? MathJax.startup.promise.then(() => 1) : 1")
        return self.tab

    def failed(self, request):
        # An aborted request is one that the browser gave up itself, because the page was left.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.missing.append(f"{request.failure} {request.url}")

    def outside(self):
        return [url for url in self.asked if not url.startswith((self.site, "data:", "blob:", "about:"))]


@pytest.fixture(
    scope="module", params=[(w, m) for w in WIDTHS for m in MODES], ids=lambda param: "-".join(param)
)
def visit(request, browser, site):
    width, mode = request.param
    visit = Visit(browser, site, WIDTHS[width], mode)
    yield visit
    visit.context.close()


@pytest.fixture(scope="module")
def reader(browser, site):
    """A reader in front of an ordinary screen."""
    visit = Visit(browser, site)
    yield visit
    visit.context.close()


@functools.cache
def soup(page):
    return BeautifulSoup((HTML / page).read_text(encoding="utf-8"), "html.parser")


# What a reader sees, without code, scripts and what formulas carry for screen readers.
VISIBLE_TEXT = """() => {
  const main = document.querySelector("article") || document.body;
  const skip = "pre, code, script, style, mjx-container, svg";
  const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!parent.closest(skip) && parent.checkVisibility()) texts.push(walker.currentNode.textContent);
  }
  return texts.join("\\n");
}"""

# The element that is too wide, because "the page scrolls" alone helps nobody.
TOO_WIDE = """() => {
  const room = document.documentElement.clientWidth, found = [];
  const clipped = (e) => { for (let p = e.parentElement; p; p = p.parentElement)
      if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(p).overflowX)) return true; };
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > room + 1 && getComputedStyle(e).position !== "fixed" && !clipped(e))
      found.push(`${e.tagName}.${e.className} ${Math.round(box.right)} ${e.textContent.slice(0, 40)}`);
  }
  return found.slice(0, 5);
}"""


COLORS = """() => [getComputedStyle(document.body).backgroundColor,
  getComputedStyle(document.querySelector("article p")).color,
  ...[...document.querySelectorAll(".fed-picture")].map(e => getComputedStyle(e).color)]"""

SEARCH_BOXES = """() => [...document.querySelectorAll(
  "input[type=search], .search-button, .search-button-field")].filter(e => e.checkVisibility()).length"""


def test_the_built_pages_are_those_of_the_table_of_contents():
    toc = (ROOT / "_toc.yml").read_text()
    assert {page.removesuffix(".html") for page in CONTENT} == set(re.findall(r"(?:root|file): (\S+)", toc))
    assert "index.html" in PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_its_icon(page):
    """Otherwise a browser asks the server's root for one, and complains that nothing is there."""
    (icon,) = soup(page).select("link[rel~=icon]")
    assert (HTML / page).parent.joinpath(icon["href"]).resolve().is_file()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_whole_in_every_window(visit, page):
    tab = visit.open(page)
    assert visit.said == []
    assert visit.missing == []
    assert visit.outside() == []
    if page not in CONTENT:
        return
    text = tab.evaluate(VISIBLE_TEXT)
    assert len(text) > 200
    for raw in (
        r"\$",
        r"\\(frac|sum|begin|nabla|lVert|text|eta)\b",
        r"\{[a-z]+\}`",
        r":::|```",
        r"^:[a-z-]+:",
        r"\{\{",
        r"^©|[a-z] © ",  # what typographers' replacements make of the third item after (a) and (b)
    ):
        assert not re.search(raw, text, flags=re.M), re.search(f".*{raw}.*", text, flags=re.M)[0][:200]
    formulas = len(soup(page).select("article .math"))
    assert tab.locator("article mjx-container").count() >= formulas
    assert tab.locator("mjx-merror").count() == 0
    room = tab.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert room[0] <= room[1], f"{room}: {tab.evaluate(TOO_WIDE)}"

    # The paper, the text and the figures follow the reader's light or dark together.
    paper, *inks = map(brightness, tab.evaluate(COLORS))
    assert (paper > 0.9) if visit.mode == "light" else (paper < 0.1)
    assert all(abs(ink - paper) > 0.4 for ink in inks), (paper, inks)

    # One search box: the box itself, or the one button that opens it.
    assert tab.evaluate(SEARCH_BOXES) == 1


def brightness(color):
    red, green, blue = map(float, re.findall(r"[\d.]+", color)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("page", CHAPTERS)
def test_formulas_are_typeset_where_the_source_has_some(reader, page):
    tab = reader.open(page)
    assert tab.locator('article mjx-container[display="true"]').count() >= 3
    assert tab.locator('article mjx-container:not([display="true"])').count() >= 10
    assert tab.locator("article mjx-container").first.bounding_box()["width"] > 0
    assert any("/mathjax/" in url for url in reader.asked)


# Links and pictures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_internal_links_and_anchors_resolve(page):
    targets = {}
    for link in soup(page).select("a[href]"):
        address, anchor = urldefrag(urljoin(f"http://book/{page}", link["href"]))
        if not address.startswith("http://book/"):
            assert re.match(r"https://|mailto:", address), link
            continue
        path = unquote(address.removeprefix("http://book/").split("?")[0]) or "index.html"
        assert (HTML / path).is_file(), f"{page} links to {link['href']}"
        if anchor and path.endswith(".html"):
            if path not in targets:
                targets[path] = {element["id"] for element in soup(path).select("[id]")}
            assert unquote(anchor) in targets[path], f"{page} links to {link['href']}"


@pytest.mark.parametrize("page", CONTENT)
def test_every_picture_is_described(page):
    for picture in soup(page).select("img"):
        assert picture.get("alt", "").strip(), picture
    for figure in soup(page).select('[role="img"]'):
        assert len(figure.get("aria-label", "")) > 40, figure.get("aria-label")
    for svg in soup(page).select("article svg"):
        assert svg.find_parent(attrs={"role": "img"}) or svg.get("aria-hidden") == "true", (
            "a figure nobody described"
        )


@pytest.mark.parametrize("page", CONTENT)
def test_a_page_has_one_title_and_a_language(page):
    assert len(soup(page).select("article h1")) == 1
    assert soup(page).html["lang"] == "en"
    assert soup(page).select_one('meta[name="viewport"]')
    ids = [element["id"] for element in soup(page).select("article [id]")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_badge_and_the_launch_button_open_this_notebook(reader, path):
    page = soup(f"notebooks/{path.stem}.html")
    (badge,) = page.select('article a:has(img[src*="colab-badge"])')
    assert badge["href"] == colab_address(path)
    assert badge.img["src"].startswith(("../_static/", "../_images/")), (
        "the badge is not fetched from elsewhere"
    )
    (launch,) = page.select('.dropdown-launch-buttons a[href*="colab"]')
    assert launch["href"] == colab_address(path)
    (repository,) = page.select("a.btn-source-repository-button")
    assert repository["href"] == REPOSITORY
    tab = reader.open(f"notebooks/{path.stem}.html")
    assert tab.evaluate("document.querySelector('article img[src*=colab-badge]').naturalWidth") > 50


def test_pages_name_no_program_from_elsewhere():
    for page in PAGES:
        for element in soup(page).select(
            "script[src], link[rel=stylesheet], link[rel=preload], img[src], iframe[src]"
        ):
            assert not re.match(r"(https?:)?//", element.get("src") or element.get("href")), element


# Search ----------------------------------------------------------------------------------------------------


def words_only_in(path):
    """Return a long word that the prose of this notebook has often, and no other notebook has."""
    counts = {}
    for other in NOTEBOOKS:
        text = " ".join(source(cell) for cell in read(other)["cells"] if cell["cell_type"] == "markdown")
        counts[other] = re.findall(r"\b[a-z]{7,}\b", re.sub(r"\$.*?\$|`.*?`|\(.*?\)", "", text, flags=re.S))
    others = {word for other in NOTEBOOKS if other != path for word in counts[other]}
    return max(set(counts[path]) - others, key=lambda word: (counts[path].count(word), word))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_search_box_finds_a_word_of_a_chapter(reader, path):
    tab, word = reader.open("book/index.html"), words_only_in(path)
    tab.locator(".search-button:visible, .search-button-field:visible").click()
    box = tab.locator("input[type=search]:visible")
    box.fill(word)
    box.press("Enter")
    tab.wait_for_selector("#search-results li a")
    found = [a.get_attribute("href") for a in tab.locator("#search-results li a").all()]
    assert any(f"notebooks/{path.stem}.html" in address for address in found), (word, found)
    assert reader.said == [] and reader.outside() == []


# Things that move ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_solutions_are_closed_until_they_are_clicked(reader, path):
    tab = reader.open(f"notebooks/{path.stem}.html")
    solutions = tab.locator(".tag_solution").all()
    assert len(solutions) == len(tagged(read(path), "solution")) >= (0 if between_chapters(path) else 3)
    for solution in solutions:
        code, verdict = solution.locator(".cell_input"), solution.locator(".cell_output")
        assert not code.is_visible() and not verdict.is_visible()
        assert "Show the solution" in solution.inner_text()
        solution.locator("summary").click()
        assert code.is_visible() and verdict.is_visible()
        assert "✓" in verdict.inner_text()
        assert "Hide the solution" in solution.inner_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_of_figures_opens_and_sentences_have_none(reader, path):
    tab, notebook = reader.open(f"notebooks/{path.stem}.html"), read(path)
    assert tab.locator(".tag_sentence").count() == len(tagged(notebook, "sentence")) > 0
    for sentence in tab.locator(".tag_sentence").all():
        assert sentence.locator("pre, code.highlight, .cell_input").count() == 0
        assert sentence.locator("p, table").first.is_visible()
    for cell in tab.locator(".tag_hide-input").all():
        assert not cell.locator(".cell_input").is_visible()
        cell.locator("summary").first.click()
        assert cell.locator(".cell_input").is_visible()
    assert 'SCALE = "quick"' in tab.locator(".tag_parameters").inner_text()
    assert tab.locator(".tag_injected-parameters").count() == 0


SLIDERS = [page for page in CONTENT if soup(page).select(".fed-slider")] if HTML.exists() else []


def test_there_is_a_figure_to_move_in_every_chapter():
    assert set(CHAPTERS) <= set(SLIDERS)


# Moves every slider to its ends and its middle, and reports the frames seen and the text beside it.
MOVE = """slider => {
  const inputs = [...slider.querySelectorAll("input")], outputs = [...slider.querySelectorAll("output")];
  const frames = [...slider.querySelectorAll(".fed-frame")];
  const seen = () => frames.flatMap((e, i) => e.checkVisibility() ? [i] : []);
  const first = seen();
  const moves = inputs.map((input, i) => [0, Number(input.max), Math.floor(input.max / 2)].map(value => {
    input.value = value;
    input.dispatchEvent(new Event("input", {bubbles: true}));
    return [value, seen(), outputs[i].textContent, input.getAttribute("aria-valuetext")];
  }));
  return [first, moves];
}"""


@pytest.mark.parametrize("page", SLIDERS)
def test_figures_move(reader, page):
    tab = reader.open(page)
    for slider in tab.locator(".fed-slider").all():
        inputs = slider.locator("input")
        labels = json.loads(re.search(r"labels = (\[.*\]\]);", slider.locator("script").text_content())[1])
        first, moves = slider.evaluate(MOVE)
        assert len(first) == 1 and len(moves) == len(labels) == inputs.count()
        for options, steps in zip(labels, moves, strict=True):
            assert all(len(frames) == 1 for _, frames, _, _ in steps), "one frame at a time"
            assert len({frames[0] for _, frames, _, _ in steps}) == min(3, len(options)), (
                "a new value, a new frame"
            )
            assert all(text == spoken == options[value] for value, _, text, spoken in steps)
        # And with the keyboard, as a reader without a mouse does it.
        before = inputs.first.input_value()
        inputs.first.press("ArrowLeft" if before != "0" else "ArrowRight")
        assert inputs.first.input_value() != before
        assert slider.locator("output").first.inner_text() == labels[0][int(inputs.first.input_value())]
    assert reader.said == [] and reader.outside() == []
