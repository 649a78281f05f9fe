"""Records and a report, published to a plain `mlflow ui`, in a browser."""

import importlib.util
import shutil

import pytest

from epochmeter.config.installation import UI_ADDRESS
from epochmeter.config.job import ROOT
from epochmeter.results.reuse import write_reference
from epochmeter.tracking import views
from epochmeter.tracking.client import SQLITE, open_store
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


def test_run_is_published_to_a_server_once(make_record, served):
    record, store = make_record(), open_store("by server", uri=served[1])
    for _ in range(2):
        run = store.client.get_run(publish(record, store).run_id)
    assert run.info.status == "FINISHED"
    assert [point.step for point in store.client.get_metric_history(run.info.run_id, "epoch/e2e_s")] == [0, 1, 2]
    assert "job.json" in [file.path for file in store.client.list_artifacts(run.info.run_id)]


@pytest.fixture
def store(served, make_record, tmp_path):
    """The server's database, with the runs of two sweeps, one of them reused by the second, and views of it."""
    store = open_store(uri=f"{SQLITE}{served[0] / 'mlflow.db'}")
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
    for name, content in REPORT.items():
        (tmp_path / name).write_text(content)
    report = log_report("a sweep", [tmp_path / name for name in REPORT], {"name": "mlflow", "experiment": "epochmeter"})
    store = open_store(uri=served[1])
    with picture.page(views.results_link(store)) as page:
        check_views_of_a_sweep(page, store)
        check_report(page, report.replace(UI_ADDRESS, served[1]))


def check_views_of_a_sweep(page, store):
    """Its own and reused runs, and the runs of all sweeps."""
    links = {"3 matching runs": views.results_link(store, SWEEP), "5 matching runs": views.results_link(store)}
    for expected, link in links.items():
        open_link(page, link, expected, exact=True)
        page.get_by_text("total/e2e_s vs. total/energy_j").first.wait_for()


def check_report(page, link):
    """The page opens, and Markdown is previewed."""
    page.goto(link)
    page.frame_locator("iframe").get_by_text("and drawn").wait_for()
    open_link(page, link.replace("report.html", "report.md"), "42.5 J")
    assert "|" not in page.inner_text("body")


def open_link(page, link, text, **options):
    """Open a link as a new page, and wait for a text."""
    page.goto("about:blank")
    page.goto(link)
    page.get_by_text(text, **options).first.wait_for()
