"""Take screenshots for the documentation with a browser.

docs/mlflow.png shows the saved view of energy and time in MLflow; docs/report.png shows the top of a report page.

    python docs/picture.py                              mlflow.png; starts a temporary MLflow server
    python docs/picture.py --url http://127.0.0.1:5000  mlflow.png; uses a running MLflow server
    python docs/picture.py --report report.html         report.png

Needs Chromium (`playwright install chromium`).
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
    from playwright.sync_api import Page, ViewportSize

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from epochmeter.tracking import views  # noqa: E402
from epochmeter.tracking.client import LOCAL_URI, Store, open_store  # noqa: E402

PICTURE, REPORT = ROOT / "docs" / "mlflow.png", ROOT / "docs" / "report.png"
START_LIMIT_S = 60
RENDER_MS = 5000
SIZE: ViewportSize = {"width": 1400, "height": 950}
SIZE_OF_REPORT: ViewportSize = {"width": 1280, "height": 800}
IN_THE_WAY = ("Hide banner", "Toggle sidebar")
CHROMIUM = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update"
WITHOUT_ASSISTANT = """
    localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
    localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running MLflow server (default: start one)")
    parser.add_argument("--report", type=Path, help="a report page to take instead of MLflow's view")
    parser.add_argument("--output", type=Path, help="image file to write (default: docs/mlflow.png or docs/report.png)")
    options = parser.parse_args()
    if options.report:
        with page(options.report.absolute().as_uri(), SIZE_OF_REPORT) as shown:
            shown.screenshot(path=options.output or REPORT)
        return
    options.output = options.output or PICTURE
    if options.url:
        count = photograph(options.url, options.output)
    else:
        runs(open_store(uri=LOCAL_URI))  # create a missing database here: a server would put its artifacts elsewhere
        with server(ROOT) as url:
            count = photograph(url, options.output)
    print(f"{options.output}: the newest of {count} runs, {SIZE['width']} x {SIZE['height']}")


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run `mlflow ui` in a folder and yield its address; end its process group afterwards."""
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
    raise RuntimeError(f"no server at {url} after {START_LIMIT_S} s; start `mlflow ui` and pass its address: --url")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def runs(store: Store) -> int:
    """Return the number of completed runs in the view."""
    count = len(store.client.search_runs([store.experiment_id], views.RUN_FILTER))
    if not count:
        raise SystemExit(f"error: {store.uri} has no completed run to show\n  hint: run `make sweep` first")
    return count


def photograph(url: str, picture: Path) -> int:
    """Take the screenshot of MLflow's view; return the number of runs in the view."""
    store = open_store(uri=url)
    count = runs(store)
    views.save_views(store)
    with page(views.results_link(store)) as shown:
        shown.screenshot(path=picture)
    return count


@contextmanager
def page(address: str, size: ViewportSize = SIZE) -> Iterator[Page]:
    """Open a page of MLflow or a report in a new browser and yield it when it is rendered."""
    from playwright.sync_api import sync_playwright

    installed = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed, args=CHROMIUM.split())
        shown = browser.new_page(viewport=size)
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
