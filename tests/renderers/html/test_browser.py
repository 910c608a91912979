"""The pages in Chromium: charts, tables, keyboard, colours, widths and print, and what axe-core says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import builder
import pytest
from builder import annotation, kernel, launch, op, write
from paths import ROOT
from typer.testing import CliRunner

from traceq.cli import app
from traceq.renderers.html.markup import element, page

NASTY = '</script><script>alert`1`</script><img src=x onerror="alert`2`">'
LONG = f"Cijk_Alik_Bljk_BBS_BH_{'WS64_WG16_16_1_' * 12}"
PHONE, LAPTOP, WIDE = (390, 844), (1280, 800), (2560, 1440)

Show = Callable[..., Any]


def run(*words: str) -> None:
    CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a diff of arms, a diff of two jobs, a job, and a trace with a nasty name."""
    folder, fixtures = tmp_path_factory.mktemp("pages"), ROOT / "fixtures"
    events = [
        *(builder.step(0, 120, 3), annotation("forward", 0, 60)),
        *(op("aten::mm", 1, 8), launch(2, 3, corr=1), kernel(NASTY, 10, 40, corr=1)),
        *(op("aten::mm", 12, 8), launch(13, 3, corr=2), kernel(LONG, 50, 30, corr=2)),
    ]
    run("show", str(write(folder / "trace.json", *events)), "--html", str(folder / "nasty.html"))
    run("diff", str(fixtures / "outlier_ab"), "--html", str(folder / "arms.html"))
    jobs = [str(fixtures / "example" / name) for name in ("job", "uneven")]
    run("diff", *jobs, "--html", str(folder / "jobs.html"))
    run("show", jobs[0], "--html", str(folder / "show.html"))
    return folder


@pytest.fixture
def show(browser: Any, folder: Path) -> Iterator[Show]:
    """Opens a page without a network, at a size and in a colour scheme; no page may write to its console."""
    contexts, messages = [], []

    def show(name: str, size: tuple[int, int] = LAPTOP, **options: Any) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        contexts.append(browser.new_context(offline=True, viewport=viewport, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda fault: messages.append(str(fault)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert messages == []


def open_all(page: Any) -> None:
    """Open what is folded, so that all charts are drawn."""
    page.evaluate("for (const each of document.querySelectorAll('main details')) each.open = true")
    until(page, f"{FIGURES}.every(each => {DRAWN}(each))")


FIGURES = "[...document.querySelectorAll('figure[data-chart]')]"
DRAWN = "(figure => figure.offsetHeight - figure.querySelector('figcaption').offsetHeight > 60)"


def until(page: Any, condition: str) -> None:
    """Wait until a condition holds: page.wait_for_function needs `unsafe-eval`, which the pages do not allow."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within 5 s: {condition}")


@pytest.mark.parametrize(
    "name", ["arms", "jobs", *(pytest.param(name, marks=pytest.mark.slow) for name in ("show", "nasty"))]
)
def test_every_figure_is_drawn_and_the_answer_is_on_the_first_screen(show: Show, name: str) -> None:
    page = show(name)
    heading = page.locator("h1").bounding_box()
    assert heading is not None
    assert heading["y"] + heading["height"] < LAPTOP[1]
    assert page.locator("dd.figure").first.is_visible()
    open_all(page)
    assert page.evaluate(f"{FIGURES}.length") > 0


def test_a_script_in_a_name_is_shown_and_not_run(show: Show) -> None:
    page = show("nasty")
    assert page.get_by_text(NASTY).first.is_visible()
    assert page.locator("script:not([type='application/json'])").count() == 1


def table_of(page: Any, key: str) -> tuple[Any, Any]:
    """Return the first table of a key that can be seen, and its box with the tools."""
    open_all(page)
    table = page.locator(f"table[data-key={key}]").first
    return table, page.locator("div.table", has=table).first


@pytest.mark.slow
def test_a_click_on_a_heading_sorts_and_another_reverses(show: Show) -> None:
    page = show("arms")
    table, _ = table_of(page, "causes")
    column = table.locator("th", has_text="delta").first
    index = column.evaluate("heading => heading.cellIndex")

    def values() -> list[float]:
        cells = table.locator(f"tbody tr td:nth-child({index + 1})").all()
        return [float(cell.get_attribute("data-value")) for cell in cells]

    before = values()
    column.locator("button").click()
    assert values() == sorted(before, reverse=True)
    column.locator("button").press("Enter")
    assert values() == sorted(before)
    assert column.get_attribute("aria-sort") == "ascending"


@pytest.mark.slow
def test_a_filter_leaves_the_rows_with_all_of_its_words(show: Show) -> None:
    table, box = table_of(show("arms"), "causes")
    rows = table.locator("tbody tr")
    texts = [text.lower() for text in rows.all_text_contents()]
    box.locator("input").fill("aten:: BWD")
    matching = [text for text in texts if "aten::" in text and "bwd" in text]
    assert [row.text_content().lower() for row in rows.all() if row.is_visible()] == matching
    assert 0 < len(matching) < len(texts)
    assert (
        box.locator("[role=status]").filter(has_text="rows").text_content() == f"{len(matching)} of {len(texts)} rows"
    )
    box.locator("input").fill("")
    assert all(row.is_visible() for row in rows.all())


@pytest.mark.slow
def test_a_table_is_copied_as_markdown_as_it_is_shown(show: Show) -> None:
    page = show("arms", permissions=["clipboard-read", "clipboard-write"])
    _, box = table_of(page, "causes")
    box.locator("input").fill("unscale_clip norm")
    box.locator("button.copy").click()
    box.locator("button.copy", has_text="Copied").wait_for()
    head, rule, *rows = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert head.startswith("| kind | cause | line |")
    assert set(rule) == set("|- :")
    assert len(rows) == 1
    assert "aten::\\_foreach\\_norm" in rows[0]
    assert {line.replace("\\|", "").count("|") for line in (head, rule, *rows)} == {head.count("|")}


@pytest.mark.slow
def test_the_pointer_and_the_keys_tell_the_value_of_a_mark(show: Show) -> None:
    page = show("arms")
    tooltip = page.locator(".tooltip")
    marks = page.locator("figure[data-chart=intervals] .mark")
    marks.first.hover()
    assert "95 % CI -3.76 ms to +8.48 ms" in tooltip.text_content()
    assert marks.first.get_attribute("aria-label").startswith("on: +2.35 ms, inconclusive")
    page.mouse.move(0, 0)
    assert tooltip.is_hidden()
    marks.first.focus()
    page.keyboard.press("ArrowDown")
    assert marks.nth(1).evaluate("mark => mark === document.activeElement")
    assert tooltip.text_content().startswith("deferred: -517 us")
    page.keyboard.press("Escape")
    assert tooltip.is_hidden()
    assert page.locator("figure[data-chart=intervals] [tabindex='0']").count() == 1


@pytest.mark.slow
def test_durations_are_written_as_traceq_writes_them(show: Show) -> None:
    from traceq.units import Unit, format_value

    page = show("show")
    for ns in (
        0,
        7,
        999,
        999_400,
        999_600,
        12_345,
        1_234_567,
        98_765_432,
        999_499_999,
        2_345_678_901,
        1_234_567_890_123,
    ):
        assert page.evaluate(f"duration({ns})") == format_value(ns, Unit.NS)
        assert page.evaluate(f"signed({-ns})") == format_value(-ns, Unit.DELTA_NS)
        assert page.evaluate(f"signed({ns})") == format_value(ns, Unit.DELTA_NS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [PHONE, LAPTOP, WIDE], ids=["phone", "laptop", "wide"])
@pytest.mark.parametrize("name", ["arms", "jobs", "show", "nasty"])
def test_at_no_width_the_page_scrolls_sideways_or_a_text_is_small_or_cut(
    show: Show, name: str, size: tuple[int, int]
) -> None:
    """Charts are drawn at the width that there is, so that no text is scaled; wide tables scroll in their box."""
    page = show(name, size)
    open_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.evaluate(SMALLEST_TEXT) >= 12
    assert page.evaluate(OUTSIDE_OF_PLOTS) == []
    assert set(page.locator(".plot > svg").evaluate_all("all => all.map(svg => svg.getScreenCTM().a)")) <= {1}


SMALLEST_TEXT = """Math.min(...[...document.querySelectorAll('.plot text, td, th, p, li, dd')]
  .filter(each => each.textContent).map(each => parseFloat(getComputedStyle(each).fontSize)))"""
OUTSIDE_OF_PLOTS = """[...document.querySelectorAll('.plot text')].filter(text => {
  const box = text.getBoundingClientRect(), plot = text.closest('.plot').getBoundingClientRect();
  return box.width && (box.left < plot.left - 1 || box.right > plot.right + 1 || box.bottom > plot.bottom + 1);
}).map(text => text.textContent)"""


@pytest.mark.slow
def test_charts_follow_the_width_of_the_window(show: Show) -> None:
    page = show("arms")
    open_all(page)
    waterfall = "[data-chart=waterfall] .plot > svg"
    svg = page.locator(waterfall).first
    wide = svg.bounding_box()["width"]
    page.set_viewport_size({"width": 390, "height": 844})
    until(page, f"document.querySelector('{waterfall}').getBoundingClientRect().width < 390")
    assert svg.bounding_box()["width"] < wide


@pytest.mark.slow
def test_dark_and_light_have_colours_of_their_own_and_print_is_light(show: Show) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light, dark = show("arms", color_scheme="light"), show("arms", color_scheme="dark")
    assert light.evaluate(back) == "rgb(255, 255, 255)"
    assert dark.evaluate(back) != "rgb(255, 255, 255)"
    dark.emulate_media(media="print", color_scheme="dark")
    assert dark.evaluate(back) == "rgb(255, 255, 255)"
    assert not any(each.is_visible() for each in dark.locator(".copy, .contents, .table input").all())


@pytest.mark.slow
def test_it_prints(show: Show, tmp_path: Path) -> None:
    page = show("show")
    document = page.pdf(format="A4")
    assert document.startswith(b"%PDF")
    assert document.count(b"/Type /Page\n") < 30


@pytest.mark.slow
def test_costs_and_savings_are_told_without_colour(show: Show) -> None:
    """By an arrow and a sign beside each bar of a waterfall."""
    page = show("arms")
    open_all(page)
    bars = page.locator("figure[data-chart=waterfall] g.row").all()
    assert len(bars) > 3
    for bar in bars:
        kind, text = bar.locator("rect.bar").get_attribute("class"), bar.locator("text.value").text_content()
        if "costs" in kind:
            assert text.startswith("▲ +")
        elif "saves" in kind:
            assert text.startswith("▼ -")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "size", [pytest.param(PHONE, id="phone"), pytest.param(LAPTOP, id="laptop", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "name", ["jobs", pytest.param("arms", marks=pytest.mark.slow), pytest.param("show", marks=pytest.mark.slow)]
)
def test_axe_finds_nothing(show: Show, name: str, size: tuple[int, int], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
    page = show(name, size, color_scheme=scheme)
    open_all(page)
    violations = axe.Axe().run(page).response["violations"]
    assert [(each["id"], each["impact"], [node["target"] for node in each["nodes"]][:3]) for each in violations] == []


@pytest.mark.slow
def test_what_leads_into_the_timeline_is_a_button_that_says_where(show: Show, folder: Path) -> None:
    """`data-goto` of any element becomes an event with its place, by a click and by keys."""
    place = element("p", "the sync", data_goto='{"rank": 1, "start": 20, "end": 30}')
    (folder / "goto.html").write_text(page("goto", [place]), encoding="utf-8")
    shown = show("goto")
    shown.evaluate("""() => {
      window.places = [];
      document.addEventListener("traceq:goto", ({ detail }) => places.push([detail.rank, detail.start, detail.end]));
    }""")
    button = shown.get_by_role("button", name="the sync")
    button.click()
    button.press("Enter")
    button.press("Space")
    assert shown.evaluate("places") == [[1, 20, 30]] * 3
