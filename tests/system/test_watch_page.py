"""The page of the live view in a real browser, while a record grows and after its server has ended."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import live
import pytest
from project import ENVIRONMENT, ROOT, Project
from system.conftest import OVERFLOWING, new_page
from watched import write_points

pytestmark = pytest.mark.system
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
MAX_PAINT_MS, MAX_UPDATE_S = 300, 2.0
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@pytest.fixture
def record(tmp_path):
    record = live.start(tmp_path / "0", name=EVIL)
    live.append_epoch(record, 0)
    return record


@contextmanager
def served(folder):
    command = [sys.executable, str(ROOT / "src/watch.py"), str(folder), "page=true", "port=0"]
    keep_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background processes of a shell ignore it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, preexec_fn=keep_ctrl_c
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def server(record):
    with served(record.folder) as process:
        yield process


def test_a_narrow_window_shows_all_cells_of_a_sweep_below_each_other(browser, record, tmp_path):
    write_points(tmp_path, ["batch=8"], ["batch=16"])
    with served(tmp_path) as process:
        page = new_page(browser, width=390)
        page.goto(process.stdout.readline().removeprefix("Page: ").strip())
        page.wait_for_selector("td.planned")
        assert not page.locator("thead").first.is_visible()
        assert page.evaluate(OVERFLOWING, "") == []


@pytest.mark.timed
@pytest.mark.alone
def test_the_page_paints_at_once_follows_the_record_and_shows_names_as_text(browser, record, server):
    url = server.stdout.readline().removeprefix("Page: ").strip()
    page = new_page(browser)
    paints_ms = []
    for _ in range(3):  # the best of three, because other processes run on this machine
        page.goto(url)
        Project.until(lambda: page.evaluate(FIRST_PAINT))
        paints_ms.append(page.evaluate(FIRST_PAINT))
    assert min(paints_ms) <= MAX_PAINT_MS
    assert page.inner_text("h1") == EVIL
    page.wait_for_selector("#connection:text-is('live')")
    titles = ["Power", "CPU utilization", "Utilization per core, now", "Temperature", "Disk latency"]
    assert page.locator(".panels h3").all_inner_texts() == titles
    assert page.locator(".panels figure:has(h3:text-is('Temperature')) .legend").inner_text() == "coretemp 59 °C"

    appended_s = time.monotonic()
    live.append_epoch(record, 1, e2e_s=12.0)
    page.wait_for_selector(".figures:has-text('12.0 s')")
    assert time.monotonic() - appended_s <= MAX_UPDATE_S
    for width in (1280, 700, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING, "") == []

    run = record.run()
    flags = {"gpu_shared": "stop `<b>it` or `that`"}
    record.describe(record.job(), {**run, "flags": flags, "start_ticks": "0"})  # its ID is that of another process
    page.wait_for_selector(".state.killed")
    assert page.locator(".note code").all_inner_texts() == ["<b>it", "that"]
    assert "`" not in page.inner_text("body")
    assert page.errors == []
    assert all(request.startswith(("data:", url)) for request in page.requests), "nothing leaves the machine"
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0
    page.wait_for_selector("#connection.lost")
