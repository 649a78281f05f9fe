"""Records and a report, published to a plain `mlflow ui`, in a browser."""

import importlib.util
import shutil

import pytest
from project import put

from epochmeter.config.installation import ROOT
from epochmeter.results.reuse import write_reference
from epochmeter.tracking import views
from epochmeter.tracking.client import open_store
from epochmeter.tracking.publish import include_reused, publish
from epochmeter.tracking.report_artifacts import log_report

pytestmark = pytest.mark.system
SWEEP = "2026-11-22_12-00-00-1a2b3c4d"
REPORT = {
    "report.html": "<!doctype html><h1>In words</h1><p id=p><script>p.textContent = 'and drawn'</script>",
    "report.md": "| batch | energy |\n| --- | --- |\n| 16 | 42.5 J |\n",
}
spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
picture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(picture)


@pytest.fixture(scope="module")
def served(template, tmp_path_factory):
    """The folder and the address of a server."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(template / "mlflow.db", folder)
    with picture.server(folder) as url:
        yield folder, url


@pytest.fixture
def store(served, make_record, tmp_path):
    """The server, with the runs of two sweeps, one of them reused by the second, and views of it."""
    store = open_store(uri=served[1])
    reused, *others = [make_record(number, batch=8 + number) for number in range(3)]
    others += [make_record(0, SWEEP), make_record(1, SWEEP, rehearsal=["no such device"])]
    for record in (reused, *others):
        publish(record, store)
    (folder := tmp_path / "multirun" / SWEEP / "2").mkdir()
    write_reference(folder, reused, ["batch=8"])
    include_reused(folder, store)
    views.save_views(store, sweep=SWEEP)
    return store


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_pages_of_sweeps_reports_and_the_experiment(served, store, tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "RENDER_MS", 1000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    files = [put(tmp_path, {name: content}) / name for name, content in REPORT.items()]
    report = log_report("a sweep", files, {"name": "mlflow", "experiment": "epochmeter"})
    with picture.page(report) as page:
        page.frame_locator("iframe").get_by_text("and drawn").wait_for()
        open_link(page, report.replace("report.html", "report.md"), "42.5 J")
        assert "|" not in page.inner_text("body"), "Markdown is previewed"
        links = {"3 matching runs": views.results_link(store, SWEEP), "5 matching runs": views.results_link(store)}
        for expected, link in links.items():
            open_link(page, link, expected, exact=True)
            page.get_by_text("total/e2e_s vs. total/energy_j").first.wait_for()


def open_link(page, link, text, **options):
    """Open a link as a new page, and wait for a text."""
    page.goto("about:blank")
    page.goto(link)
    page.get_by_text(text, **options).first.wait_for()
