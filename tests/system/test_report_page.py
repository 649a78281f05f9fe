"""The report in a real browser: tooltips, clicks, sorting, filters, widths, dark mode and print."""

from dataclasses import replace

import pytest
from project import Project
from sweeps import trained
from system.conftest import OVERFLOWING, new_page

from epochmeter.report.build import build_report
from epochmeter.report.output import table
from epochmeter.report.output.report import report_html
from epochmeter.report.runs.run import Sweep
from epochmeter.shared.problem import Problem

pytestmark = pytest.mark.system
EVIL = "<script>alert(1)</script>"
LINK = "http://127.0.0.1:9/#/experiments/1/runs/{}"
MAX_BYTES, MAX_MS = 3e6, 3000
SCROLLING = ".wide, svg, .words table:not(.stacked)"  # the table of all runs and long tables scroll within the page


def ran(number, batch, limit, model="resnet152"):
    """A run that takes less time with a larger batch and limit, and more energy with a larger limit."""
    e2e_s = 20 + 400 / batch + 2000 / limit
    energy_j = e2e_s * (20 + limit / 3)
    parts = {"data_stall_s": 400 / batch, "copy_s": 1.0, "overhead_s": 1.0, "compute_s": 18 + 2000 / limit}
    phases = {"stall_energy_j": 0.1, "copy_energy_j": 0.1, "compute_energy_j": 0.7, "overhead_energy_j": 0.1}
    joules = {"energy_j": energy_j, **{name: share * energy_j for name, share in phases.items()}}
    epochs = [{"epoch/e2e_s": e2e_s * (1.5 if epoch == 0 else 1.0)} for epoch in range(4)]
    run = trained(number, 1000 / e2e_s, batch=batch, power_limit=limit, steady={**parts, **joules}, epochs=epochs)
    job = {**run.job, "model": {"name": model}}
    return replace(run, job=job, link=LINK.format(number), keys={"batch": str(batch), "power_limit": str(limit)})


def written(runs, path):
    report = build_report(Sweep(path.parent, runs, {}))
    rows = report.runs and table.html(report.runs, table.columns_and_rows(report.runs))
    path.write_text(report_html(report, rows or ""), encoding="utf-8")
    return path


def open_page(browser, path, width=1280, **options):
    """Return the page once it is complete."""
    page = new_page(browser, width, **options)
    page.goto(path.as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn", timeout=60_000)
    if page.locator("#all-runs").count():
        page.wait_for_selector("#runs.dataTable", timeout=60_000)
    return page


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    runs = [ran(4 * i + j, batch, limit, EVIL if batch == 16 else "resnet152")
            for i, batch in enumerate((8, 16, 64)) for j, limit in enumerate((100, 200))]  # fmt: skip
    return written(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def shown(browser, path):
    page = open_page(browser, path)
    yield page
    page.close()


TWO = [ran(0, 8, 100), ran(1, 16, 100)]
REACHED = {"total/time_to_target_s": 9.0}
STATES = {
    "one run": TWO[:1],
    "failed": [replace(run, state="failed", failure=Problem("no memory " * 40)) for run in TWO],
    "rehearsals": [replace(run, rehearsal=["device=nano"]) for run in TWO],
    "target": [replace(run, metrics=run.metrics | REACHED, job={**run.job, "target_accuracy": 0.9}) for run in TWO],
    "without energy": [
        replace(run, metrics={name: value for name, value in run.metrics.items() if "energy" not in name})
        for run in TWO
    ],
    "600 runs": [ran(n, 2**n, 100 + 10 * limit) for limit in range(60) for n in range(10)],
}


@pytest.mark.parametrize("state", STATES)
def test_nothing_overflows_in_any_state(browser, tmp_path, state):
    path = written(STATES[state], tmp_path / "report.html")
    for width in (1280, 700, 390):
        page = open_page(browser, path, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert (page.evaluate(OVERFLOWING, SCROLLING), page.errors) == ([], [])
        assert page.locator(".dt-paging button:visible").count() >= (len(STATES[state]) > 10), "pages of the table"
        page.close()


def test_nothing_leaves_the_machine_and_names_are_text(shown):
    assert [url for url in shown.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert shown.errors == []
    assert "<script>alert(1)" in shown.inner_text("#epoch_parts"), "shown as it is"
    assert shown.locator(".vega-actions").count() == 0, "no menu that sends a chart elsewhere"


def test_tooltip_of_a_mark_names_its_configuration_and_a_click_opens_its_run(shown):
    mark = shown.locator("#energy_by_time .mark-symbol.role-mark path").first
    mark.scroll_into_view_if_needed()
    mark.hover(force=True)
    text = shown.wait_for_selector("#vg-tooltip-element.visible").inner_text()
    for part in ("batch 8, power_limit 100", "90.0 s", "4.80 kJ", "0"):
        assert part in text
    with shown.expect_popup() as opened:
        mark.click(force=True)
    assert opened.value.url == LINK.format(0) or "chrome-error" in opened.value.url
    opened.value.close()


def test_click_within_a_sandboxed_frame_shows_the_address(browser, path, tmp_path):
    """As MLflow shows an artifact: in a frame that may run scripts and nothing else."""
    around = tmp_path / "around.html"
    around.write_text(f'<iframe sandbox="allow-scripts" src="{path.as_uri()}" width="1200" height="6000"></iframe>')
    page = browser.new_page(viewport={"width": 1280, "height": 6100})
    page.goto(around.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("#runs.dataTable", timeout=60_000)
    assert frame.locator(".framed").is_visible()
    frame.locator("#runs tbody tr a").first.click()
    assert LINK.format(0) in frame.wait_for_selector("#all-runs .address").inner_text()
    frame.locator("#epoch_parts .mark-rect.role-mark path").first.click(force=True)
    assert "/runs/" in frame.wait_for_selector("#epoch_parts .address").inner_text()
    assert len(page.context.pages) == 1
    page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_charts_fit_their_places_and_follow_the_color_scheme(browser, path, width, scheme):
    page = open_page(browser, path, width, color_scheme=scheme)
    assert page.evaluate(OVERFLOWING, SCROLLING) == []
    ink = page.locator("#energy_by_time .role-axis-title text").first.get_attribute("fill")
    assert ink == {"light": "#1c2430", "dark": "#e8ebef"}[scheme]
    places = page.locator(".plot").evaluate_all("(all) => all.map((one) => [one.clientWidth, one.scrollWidth])")
    assert all(inner <= outer for outer, inner in places)
    is_dark = scheme == "light"  # it changes while the page is open
    page.emulate_media(color_scheme="dark" if is_dark else "light")
    Project.until(lambda: page.evaluate("document.documentElement.classList.contains('dark')") == is_dark)
    page.emulate_media(color_scheme=scheme)
    Project.until(lambda: page.locator("#energy_by_time .plot.dark").count() == (scheme == "dark"))
    page.emulate_media(media="print")
    shown = page.locator("#energy_by_time .plot").evaluate("(plot) => getComputedStyle(plot).filter")
    assert ("invert" in shown) == (scheme == "dark"), "paper is light"
    page.close()


def column(page, name):
    heads = [head.strip() for head in page.locator("#runs thead th").all_inner_texts()]
    at = next(index for index, head in enumerate(heads) if head.startswith(name))
    return at, page.locator(f"#runs tbody tr td:nth-child({at + 1})").all_inner_texts()


def test_table_is_sorted_by_a_click(shown):
    at, before = column(shown, "time")
    head = shown.locator("#runs thead th").nth(at)
    rising = sorted(before, key=float)
    for expected in (rising, rising[::-1]):
        head.click()
        Project.until(lambda expected=expected: column(shown, "time")[1] == expected)  # it is drawn in a while
    assert shown.locator("#runs tfoot input").count() == 0, "a short table needs no filters"


@pytest.mark.alone
def test_ten_thousand_runs_are_one_small_page_that_is_soon_ready(browser, tmp_path):
    rows = [ran(20 * i + j, 8 + i, 100 + 10 * j) for i in range(500) for j in range(20)]
    path = written(rows, tmp_path / "report.html")
    times_ms = []
    for _ in range(3):  # the best of three, because other processes run on this machine
        page = open_page(browser, path)
        times_ms.append(int(page.evaluate("document.documentElement.dataset.ready")))
        page.close()
        if times_ms[-1] <= MAX_MS:
            break
    assert path.stat().st_size <= MAX_BYTES
    assert min(times_ms) <= MAX_MS
