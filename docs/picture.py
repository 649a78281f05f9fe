"""Makes the pictures of the README, as a browser shows them: docs/mlflow.png, the saved view of energy and time of the
runs of this project, and docs/report.png, the top of a report's page.

    python docs/picture.py                              starts a server for the time it takes
    python docs/picture.py --url http://127.0.0.1:5000  uses one that runs
    python docs/picture.py --report report.html         of a report's page

Needs chromium, or what `playwright install chromium` fetches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright, ViewportSize

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from epochmeter.tracking import views  # noqa: E402
from epochmeter.tracking.client import LOCAL, Store, open_store  # noqa: E402

PICTURE, REPORT = ROOT / "docs" / "mlflow.png", ROOT / "docs" / "report.png"
START_LIMIT_S = 60
RENDER_MS = 5000
SIZE: ViewportSize = {"width": 1400, "height": 950}
SIZE_OF_REPORT: ViewportSize = {"width": 1280, "height": 1290}
IN_THE_WAY = ("Hide banner", "Toggle sidebar")
CHROMIUM = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
WITHOUT_ASSISTANT = """
    localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
    localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a tracking server that shows the runs; by default one is started here")
    parser.add_argument("--report", type=Path, help="the page of a report, in place of MLflow's view")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.report:
        photograph_report(asked.report, asked.output or REPORT)
        return
    asked.output = asked.output or PICTURE
    if asked.url:
        shown = photograph(asked.url, asked.output)
    else:
        runs(open_store(uri=LOCAL))  # made here if it is missing: a server would lay its artifacts elsewhere
        with server(ROOT) as url:
            shown = photograph(url, asked.output)
    print(f"{asked.output}: the newest of {shown} runs, {SIZE['width']} x {SIZE['height']}")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A plain `mlflow ui` in a folder, while it is needed; its whole process group ends with it."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "ui", "--workers", "1", "--port", url.rpartition(":")[2]]
    own = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    environment = {**own, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(f"{url}/health", process)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def wait_for(url: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=1)
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no server at {url} within {START_LIMIT_S} s. Start one with `mlflow ui` and name it: --url")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def runs(store: Store) -> int:
    """How many runs the view shows: those that measured something, to their end."""
    found = len(store.client.search_runs([store.experiment_id], views.SHOWN))
    if not found:
        raise SystemExit(f"{store.uri} has no finished run to show. Make some first: make sweep")
    return found


def photograph(url: str, picture: Path) -> int:
    """Takes the picture, and returns how many runs its view holds."""
    store = open_store(uri=url)
    found = runs(store)
    views.save(store)
    with page(views.link(store)) as shown:
        shown.screenshot(path=picture)
    return found


def photograph_report(report: Path, picture: Path) -> None:
    """Takes the picture of the top of a report's page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launched(playwright)
        shown = browser.new_page(viewport=SIZE_OF_REPORT)
        shown.goto(report.absolute().as_uri())
        shown.wait_for_timeout(RENDER_MS)
        shown.screenshot(path=picture)
        browser.close()


def launched(playwright: Playwright) -> Browser:
    installed = shutil.which("chromium") or shutil.which("chromium-browser")
    return playwright.chromium.launch(executable_path=installed, args=CHROMIUM.split())


def text(address: str) -> str:
    """What a page says when it is drawn."""
    with page(address) as shown:
        return shown.inner_text("body")


@contextmanager
def page(address: str) -> Iterator[Page]:
    """A page of MLflow in a browser of its own, drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launched(playwright)
        shown = browser.new_page(viewport=SIZE)
        shown.add_init_script(WITHOUT_ASSISTANT)
        shown.goto(address)
        shown.wait_for_timeout(RENDER_MS)
        for label in IN_THE_WAY:
            if shown.get_by_label(label).count():
                shown.get_by_label(label).first.click()
        shown.wait_for_timeout(RENDER_MS)
        yield shown
        browser.close()


if __name__ == "__main__":
    main()
