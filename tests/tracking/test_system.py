"""Records, the command `src/publish.py`, a plain `mlflow ui`, and a browser."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from epochmeter.config.job import ROOT
from epochmeter.results.reuse import write_reference
from epochmeter.tracking import views
from epochmeter.tracking.client import open_store
from epochmeter.tracking.publish import include_reused, publish
from epochmeter.tracking.publisher import Publisher
from epochmeter.tracking.report_artifacts import log_report

pytestmark = pytest.mark.system
TRACKED = {"name": "mlflow", "experiment": "epochmeter"}
spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
picture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(picture)


@pytest.fixture
def store(other_store):
    """A database in `tmp_path`, which a server of that folder serves."""
    return other_store


def run_publish(store_uri, *arguments):
    command = [sys.executable, str(ROOT / "src" / "publish.py"), *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, "MLFLOW_TRACKING_URI": store_uri}, cwd="/", capture_output=True, text=True
    )


def test_publish_links_a_view_only_if_it_has_runs(store, make_record, tmp_path):
    failed = make_record(0, state="failed")
    first = run_publish(store.uri, tmp_path / "multirun")
    assert first.returncode == 0, first.stderr
    assert str(failed.folder) in first.stdout
    assert first.stdout.endswith("1 of 1 runs published\n")
    make_record(1)
    second = run_publish(store.uri, tmp_path / "multirun")
    assert "2 of 2 runs published" in second.stdout
    assert views.ENERGY_AND_TIME in second.stdout.splitlines()[-1]


def test_publish_fails_for_an_empty_folder_and_a_broken_record(store, make_record, tmp_path):
    (tmp_path / "empty").mkdir()
    make_record()
    broken = make_record(1)
    (broken.folder / "job.json").write_text("{half")
    result = run_publish(store.uri, tmp_path / "multirun", tmp_path / "empty")
    assert result.returncode == 1
    assert "empty contains no runs" in result.stderr
    assert f"cannot publish {broken.folder}: " in result.stderr
    assert "1 of 2 runs published" in result.stdout


def test_run_of_an_offline_server_is_published_when_it_is_back(make_record, tmp_path):
    record = make_record()
    folder = tmp_path / "server"
    folder.mkdir()
    offline = Publisher(record, lambda: open_store(uri="http://127.0.0.1:9"))
    offline.start()
    assert "its record is complete" in offline.close()
    with picture.server(folder) as url:
        store = open_store(uri=url)
        for _ in range(2):
            run = store.client.get_run(publish(record, store).run_id)
        history = store.client.get_metric_history(run.info.run_id, "epoch/e2e_s")
        files = store.client.list_artifacts(run.info.run_id)
    assert run.info.status == "FINISHED"
    assert [point.step for point in history] == [0, 1, 2]
    assert "job.json" in [file.path for file in files]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_link_of_a_sweep_shows_only_its_own_and_reused_runs_without_rehearsals(store, make_record, tmp_path):
    reused, *others = [make_record(number, batch=8 + number) for number in range(3)]
    new = tmp_path / "multirun" / "2026-11-22_12-00-00-1a2b3c4d"
    others += [make_record(0, new.name), make_record(1, new.name, rehearsal=["no such device"])]
    for record in (reused, *others):
        publish(record, store)
    (new / "2").mkdir()
    write_reference(new / "2", reused, ["batch=8"])
    include_reused(new / "2", store)
    views.save_views(store, sweep=new.name)
    with picture.server(tmp_path) as url:
        served = open_store(uri=url)
        links = [views.results_link(served, new.name, rehearsal) for rehearsal in (False, True)]
        result, rehearsed, every = map(picture.text, [*links, views.results_link(served)])
    assert "2 matching runs" in result
    assert "total/e2e_s vs. total/energy_j" in result
    assert "1 matching run" in rehearsed
    assert "5 matching runs" in every


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_report_link_opens_its_page_and_other_files_are_previewed(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    files = {
        "report.html": "<!doctype html><h1>In words</h1><p id=p><script>p.textContent = 'and drawn'</script>",
        "report.md": "| batch | energy |\n| --- | --- |\n| 16 | 42.5 J |\n",
        "report.csv": "batch,energy_j\n16,42.5\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    link = log_report("a sweep", [tmp_path / name for name in files], TRACKED)
    with picture.server(tmp_path) as url:
        address = link.replace(views.LOCAL, url)
        with picture.page(address) as page:
            assert page.frames[-1].inner_text("body").split() == ["In", "words", "and", "drawn"]
        shown = {name: picture.text(address.replace("report.html", name)) for name in ("report.md", "report.csv")}
    assert "42.5 J" in shown["report.md"]
    assert "|" not in shown["report.md"]
    assert {"energy_j", "42.5"} <= set(shown["report.csv"].split())


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_experiment_page_has_a_description_whose_links_open_views_with_runs(store, make_record, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    (tmp_path / "report.html").write_text("<p>")
    log_report("a sweep", [tmp_path / "report.html"], TRACKED)
    publish(make_record(), store)
    views.save_views(store)
    with picture.server(tmp_path) as url, picture.page(views.results_link(open_store(uri=url))) as page:
        assert "where the time of each epoch went" in page.inner_text("body")
        assert "1 matching run" in page.inner_text("body")
        page.get_by_text("Measured training runs").locator("xpath=ancestor::div[.//button][1]//button").last.click()
        for name, found in {"by device and power limit": "Group: device: ", "reports": "report of a sweep"}.items():
            page.goto(page.get_by_role("link", name=name).evaluate("link => link.href"))
            page.get_by_text(found).first.wait_for()
