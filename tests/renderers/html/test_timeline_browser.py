"""The timeline and the flame view in Chromium: wheel, drag, keys, touch, hover, search, places, colours, sharpness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builder import Event, annotation, call, frame, kernel, launch, memcpy, op, step, write
from paths import ROOT
from typer.testing import CliRunner

from traceq.cli import app

PHONE, LAPTOP = (390, 844), (1280, 800)

Show = Callable[..., Any]


def recorded(path: Path) -> Path:
    """Four steps of 2 ms with a kernel, a sync of 500 us at a line, and modules; the sync is costly."""
    events: list[Event] = []
    for number in range(4):
        start, corr = 2000 * number, 10 * number
        events += [
            step(start, 2000, number),
            annotation("forward", start, 1300),
            annotation("backward", start + 1300, 700),
            frame("train.py(12): train", start + 1, 1900),
            frame("nn.Module: Net_0", start + 5, 600),
            op("aten::mm", start + 10, 20),
            launch(start + 12, 5, corr=corr + 1),
            kernel("void gemm<float>(int)", start + 30, 480, corr=corr + 1),
            op("aten::item", start + 40, 520),
            call("cudaMemcpyAsync", start + 45, 5, corr + 2),
            memcpy("DtoH (Device -> Pinned)", start + 520, 5, corr=corr + 2),
            call("cudaStreamSynchronize", start + 50, 500),
            op("aten::add", start + 900, 20),
            launch(start + 905, 5, corr=corr + 3),
            kernel("add", start + 920, 950, corr=corr + 3),
        ]
    return write(path, *events)


def run(*words: str) -> None:
    CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`show.html` of the trace above, `diff.html` of the recorded fixture."""
    folder = tmp_path_factory.mktemp("timelines")
    run("show", str(recorded(folder / "trace.json")), "--html", str(folder / "show.html"))
    run("diff", str(ROOT / "fixtures" / "outlier_ab"), "--html", str(folder / "diff.html"))
    return folder


@pytest.fixture
def show(browser: Any, folder: Path) -> Iterator[Show]:
    """Opens a page without a network and waits for its timeline; no page may write to its console."""
    contexts, messages = [], []

    def show(name: str = "show", size: tuple[int, int] = LAPTOP, **options: Any) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        contexts.append(browser.new_context(offline=True, viewport=viewport, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda fault: messages.append(str(fault)))
        page.goto((folder / f"{name}.html").as_uri())
        page.wait_for_selector("figure[data-chart=timeline][data-drawn]")
        return page

    yield show
    for context in contexts:
        context.close()
    assert messages == []


def state(page: Any, name: str, kind: str = "timeline") -> str:
    """Return what the figure says of itself."""
    text = page.locator(f"figure[data-chart={kind}]").first.get_attribute(f"data-{name}")
    return text or ""


def visible(page: Any) -> tuple[int, int]:
    """Return the visible range, ns."""
    start, end = map(int, state(page, "visible").split(","))
    return start, end


def details(page: Any) -> str:
    """Return what the live region of the timeline says."""
    text: str = page.locator(".timeline .timeline-details").text_content()
    return text


def show_all(page: Any) -> None:
    page.get_by_role("button", name="Show all").click()


def open_all(folded: Any) -> None:
    folded.evaluate_all("all => all.map(each => each.open = true)")


def canvas(page: Any) -> Any:
    canvas = page.locator(".timeline-canvas")
    canvas.scroll_into_view_if_needed()
    return canvas


def middle(page: Any) -> tuple[float, float]:
    box = canvas(page).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + 60


def hover(page: Any, name: str) -> None:
    """Move the pointer over the lanes, top to bottom, until a span of that name is under it."""
    box = canvas(page).bounding_box()
    for y in range(30, int(box["height"]), 8):
        for x in range(140, int(box["width"]), 12):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if state(page, "hovered").startswith(name):
                return
    raise AssertionError(f"no span {name}")


@pytest.mark.slow
def test_the_shown_step_is_in_view_and_its_neighbours_beside_it(show: Show) -> None:
    page = show()
    assert visible(page) == (0, 2_130_000)
    show_all(page)
    assert visible(page) == (-1_870_000, 4_130_000)
    page.get_by_role("button", name="Show the step").click()
    assert visible(page) == (0, 2_130_000)


def test_the_wheel_zooms_about_the_pointer_and_the_page_scrolls_where_it_did_not_move(show: Show) -> None:
    page = show()
    x, y = middle(page)
    show_all(page)
    whole = visible(page)
    page.wait_for_timeout(50)  # the scroll to the canvas is over
    page.mouse.move(x - 9, y)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(50)
    zoomed = visible(page)
    assert zoomed[1] - zoomed[0] < (whole[1] - whole[0]) * 0.8
    box = canvas(page).bounding_box()
    share = (x - box["x"] - 128) / (box["width"] - 128)
    under = [start + (end - start) * share for start, end in (whole, zoomed)]
    assert abs(under[0] - under[1]) < (whole[1] - whole[0]) / 500
    page.mouse.wheel(0, 3000)
    page.wait_for_timeout(50)
    assert visible(page) == whole


@pytest.mark.slow
def test_a_wheel_that_began_outside_scrolls_on(show: Show) -> None:
    page = show()
    top = canvas(page).bounding_box()["y"]
    page.evaluate(f"scrollBy(0, {top - 700})")
    page.mouse.move(700, 300)
    page.evaluate("dispatchEvent(new Event('scroll'))")
    whole, scrolled = visible(page), page.evaluate("scrollY")
    box = canvas(page).bounding_box()
    if box["y"] < 300:
        pytest.skip("the pointer is on it")
    for _ in range(6):
        page.mouse.wheel(0, 120)
        page.wait_for_timeout(30)
    assert page.evaluate("scrollY") > scrolled
    assert visible(page) == whole


@pytest.mark.slow
def test_keys_zoom_pan_and_reset(show: Show) -> None:
    page = show()
    canvas(page).focus()
    whole = visible(page)
    for key in ("w", "+", "ArrowUp"):
        before = visible(page)
        page.keyboard.press(key)
        assert visible(page)[1] - visible(page)[0] < before[1] - before[0]
    for key, sign in (("d", 1), ("ArrowRight", 1), ("a", -1), ("ArrowLeft", -1)):
        before = visible(page)
        page.keyboard.press(key)
        assert (visible(page)[0] - before[0]) * sign > 0
        assert abs((visible(page)[1] - visible(page)[0]) - (before[1] - before[0])) <= 1
    for key in ("s", "-", "ArrowDown"):
        before = visible(page)
        page.keyboard.press(key)
        assert visible(page)[1] - visible(page)[0] > before[1] - before[0]
    page.keyboard.press("w")
    page.keyboard.press("0")
    assert visible(page) == whole


@pytest.mark.slow
def test_a_drag_pans_as_far_as_the_pointer_goes(show: Show) -> None:
    page = show()
    canvas(page).focus()
    for _ in range(4):
        page.keyboard.press("w")
    start, end = visible(page)
    x, y = middle(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=5)
    page.mouse.up()
    box = canvas(page).bounding_box()
    expected = 100 * (end - start) / (box["width"] - 128)
    assert abs(visible(page)[0] - start - expected) < (end - start) / 200


@pytest.mark.slow
def test_the_pointer_tells_name_time_line_module_and_phase(show: Show) -> None:
    page = show()
    hover(page, "aten::mm")
    text = page.locator(".tooltip").text_content()
    assert "20.0 us" in text
    assert "line train.py:12 train" in text
    assert "module Net_0" in text
    assert "phase forward" in text
    hover(page, "dtoh sync: aten::item")
    assert "without all such syncs" in page.locator(".tooltip").text_content()
    hover(page, "gemm")
    assert "starts 18.0 us after its launch" in page.locator(".tooltip").text_content()
    page.mouse.move(0, 0)
    assert page.locator(".tooltip").is_hidden()
    assert state(page, "hovered") == ""


@pytest.mark.slow
def test_keys_walk_from_span_to_span_and_a_live_region_says_each(show: Show) -> None:
    page = show()
    show_all(page)
    canvas(page).focus()
    page.keyboard.press(".")
    assert state(page, "focused") == "forward"
    page.keyboard.press(".")
    assert state(page, "focused") == "backward"
    assert page.locator(".timeline .timeline-details").get_attribute("aria-live") == "polite"
    assert "backward · 700 us" in details(page)
    page.keyboard.press(",")
    assert state(page, "focused") == "forward"
    page.keyboard.press(">")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "application"
    whole = visible(page)
    page.keyboard.press("f")
    start, end = visible(page)
    assert end - start < whole[1] - whole[0]
    page.keyboard.press("Escape")
    assert state(page, "focused") == ""


def test_a_click_on_a_finding_shows_the_sync_and_back_returns(show: Show) -> None:
    page = show()
    link = page.locator("header [data-goto]", has_text="dtoh sync").first
    before, scrolled = visible(page), page.evaluate("scrollY")
    link.click()
    page.wait_for_timeout(50)
    start, end = visible(page)
    marked_start, marked_end = map(int, state(page, "marked").partition(":")[2].split(","))
    assert start <= marked_start < marked_end <= end
    assert end - start < before[1] - before[0]
    box = canvas(page).bounding_box()
    assert 0 <= box["y"] < LAPTOP[1]
    assert "dtoh sync: aten::item" in details(page)
    page.get_by_role("button", name="Back to where the link was").click()
    assert visible(page) == before
    assert state(page, "marked") == ""
    assert page.evaluate("scrollY") == scrolled
    assert link.evaluate("link => link === document.activeElement")


def test_escape_returns_as_well_from_the_row_of_a_table(show: Show) -> None:
    page = show()
    link = page.locator("[data-key=syncs] [data-goto]").first
    link.scroll_into_view_if_needed()
    before, scrolled = visible(page), page.evaluate("scrollY")
    link.press("Enter")
    assert state(page, "marked") != ""
    page.keyboard.press("Escape")
    assert visible(page) == before
    assert page.evaluate("scrollY") == scrolled


@pytest.mark.slow
def test_a_search_counts_and_enter_leads_from_match_to_match(show: Show) -> None:
    page = show()
    canvas(page).focus()
    page.keyboard.press("/")
    page.keyboard.type("aten::item")
    matches = int(state(page, "matches"))
    assert matches >= 2
    page.keyboard.press("Enter")
    assert page.locator(".timeline-count").first.text_content() == f"1 of {matches} spans"
    assert "aten::item" in details(page)


@pytest.mark.slow
def test_dark_and_light_are_redrawn(show: Show) -> None:
    page = show(color_scheme="light")
    pixel = """() => {
      const canvas = document.querySelector(".timeline-canvas");
      const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 3 - canvas.width, 3 - canvas.height);
      return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }"""
    light = page.evaluate(pixel)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => ({pixel})()[0] < {light[0]}")
    assert sum(page.evaluate(pixel)) < 150 < sum(light)


@pytest.mark.slow
def test_the_canvas_is_sharp_at_the_resolution_of_the_screen(show: Show) -> None:
    page = show(device_scale_factor=3)
    assert page.evaluate("""() => {
      const canvas = document.querySelector(".timeline-canvas");
      return canvas.width / canvas.getBoundingClientRect().width;
    }""") == pytest.approx(3, abs=0.01)


@pytest.mark.slow
def test_a_finger_pans_sideways_and_scrolls_the_page_up_and_down(show: Show) -> None:
    page = show(size=PHONE, has_touch=True, is_mobile=True)
    canvas(page).focus()
    for _ in range(4):
        page.keyboard.press("w")
    box = canvas(page).bounding_box()
    x, y = box["x"] + 250, box["y"] + 60
    session = page.context.new_cdp_session(page)

    def swipe(dx: int, dy: int) -> None:
        def send(kind: str, points: list[dict[str, float]]) -> None:
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        send("touchStart", [{"x": x, "y": y}])
        for part in range(1, 11):
            send("touchMove", [{"x": x + dx * part / 10, "y": y + dy * part / 10}])
        send("touchEnd", [])
        page.wait_for_timeout(300)

    before = visible(page)
    swipe(-150, 2)
    after = visible(page)
    assert after[0] > before[0]
    assert abs((after[1] - after[0]) - (before[1] - before[0])) <= 1
    scrolled = page.evaluate("scrollY")
    swipe(3, -60)
    assert visible(page) == after
    assert page.evaluate("scrollY") != scrolled


@pytest.mark.slow
def test_two_fingers_zoom(show: Show) -> None:
    page = show(size=PHONE, has_touch=True, is_mobile=True)
    box = canvas(page).bounding_box()
    x, y = box["x"] + 180, box["y"] + 60
    session = page.context.new_cdp_session(page)
    before = visible(page)
    for kind, apart in (("touchStart", 20), ("touchMove", 40), ("touchMove", 80), ("touchEnd", 0)):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}] if apart else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_timeout(100)
    assert visible(page)[1] - visible(page)[0] < (before[1] - before[0]) / 2


@pytest.mark.slow
def test_a_frame_of_the_flame_view_zooms_and_tells_its_time(show: Show) -> None:
    page = show()
    frame = page.get_by_role("treeitem", name="forward, 1.30 ms per step")
    frame.scroll_into_view_if_needed()
    narrow = frame.bounding_box()["width"]
    frame.hover()
    assert "1.30 ms per step, 65.0 % of it" in page.locator(".tooltip").text_content()
    frame.click()
    assert state(page, "zoomed", "flame") == "forward"
    assert frame.bounding_box()["width"] > narrow * 1.4
    module = page.get_by_role("treeitem", name="Net_0")
    module.focus()
    assert "Net_0 · 600 us per step" in page.locator(".flame .timeline-details").text_content()
    page.keyboard.press("ArrowUp")
    assert frame.evaluate("frame => frame === document.activeElement")
    page.keyboard.press("Escape")
    assert state(page, "zoomed", "flame") == ""


@pytest.mark.slow
def test_a_search_in_the_flame_view_says_its_share(show: Show) -> None:
    page = show()
    page.get_by_label("Search the flame view").fill("cudaStreamSynchronize")
    assert state(page, "matches", "flame") == "25.0 % of the step"
    assert page.locator(".frame.match").count() == 1
    assert page.locator(".frame.faint").count() > 3


@pytest.mark.slow
def test_a_diff_has_a_above_b_on_one_axis_and_frames_by_difference(show: Show) -> None:
    page = show("diff")
    titles = page.evaluate("document.querySelector('.timeline-canvas').getAttribute('aria-label')")
    assert "A · off · rank" in titles
    assert titles.index("A · off") < titles.index("B · ")
    open_all(page.locator("details"))
    page.wait_for_selector(".frame")
    for shown in page.locator(".frame.costs, .frame.saves").all()[:20]:
        words, kind = shown.get_attribute("aria-label"), shown.get_attribute("class")
        assert (", +" if "costs" in kind else ", -") in words
        assert "A off: " in words
    link = page.locator("[data-key=causes] [data-goto]").first
    link.click()
    side = state(page, "marked")[0]
    assert side in "AB"


@pytest.mark.slow
def test_causes_of_every_arm_lead_to_its_own_timeline(show: Show) -> None:
    """Those of the arm that differs most to the open one, others to theirs, which opens; Escape leads back."""
    page = show("diff")
    open_all(page.locator("#arms details"))
    figures = page.locator("figure[data-chart=timeline]")
    assert figures.count() == page.locator("#arms > details").count() > 1
    for number in range(figures.count()):
        marked = f'"timeline": {number}' if number else ""
        links = page.locator("[data-key=causes] [data-goto]").all()
        link = next(each for each in links if marked in each.get_attribute("data-goto"))
        if not number:
            link = next(each for each in links if "timeline" not in each.get_attribute("data-goto"))
        link.click()
        assert [bool(each.get_attribute("data-marked")) for each in figures.all()] == [
            each == number for each in range(figures.count())
        ]
        figure = figures.nth(number)
        assert figure.locator(".timeline-canvas").is_visible()
        assert figure.locator(".timeline-details").text_content()
    page.keyboard.press("Escape")
    assert not any(each.get_attribute("data-marked") for each in figures.all())
    assert link.evaluate("each => each === document.activeElement")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, LAPTOP], ids=["phone", "laptop"])
def test_axe_finds_nothing_in_either_view(show: Show, size: tuple[int, int], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is missing")
    page = show(size=size, color_scheme=scheme)
    views = {"include": [["figure[data-chart=timeline]"], ["figure[data-chart=flame]"]]}
    violations = axe.Axe().run(page, context=views).response["violations"]
    assert [(each["id"], each["impact"], [node["target"] for node in each["nodes"]][:3]) for each in violations] == []
