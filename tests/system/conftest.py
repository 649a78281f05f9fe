"""A browser for the tests of pages, and a Slurm for those of clusters."""

from pathlib import Path

import pytest
import slurm

from epochmeter.cluster.submissions import SubmissionLog

CHROMIUM = Path("/usr/bin/chromium")
FEATURES = {"n0": "nano", "n1": "agx"}
"""Both nodes are on this host."""
LIMIT_S = 500
OVERFLOWING = """(except) => [...document.querySelectorAll("main *")].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !(except && element.closest(except));
}).map((element) => `${element.tagName} ${element.id} ${element.className}`)"""
"""The elements that reach beyond the window, except those within elements of a CSS selector."""


def new_page(browser, width=1280, **options):
    """Return a page that collects its `requests` and `errors`; a dialog is an error."""
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.requests, page.errors = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: (page.errors.append(dialog.message), dialog.dismiss()))
    return page


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if not slurm.is_available():
        pytest.skip(slurm.REQUIREMENTS)
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    with slurm.running(tmp_path_factory.mktemp("slurm"), FEATURES) as found:
        yield found


@pytest.fixture
def sweep(cluster, project):
    """A project with the cluster: sweep.submit(device="nano,agx") -> the started command."""

    def submit(**overrides):
        arguments = project.stubbed("-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", **overrides)
        # Both nodes are one host: each has its own locks.
        arguments.append("machine.lock_dir=" + str(project.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}")
        return project.start("train", *arguments, **{**cluster.environment, "OMP_NUM_THREADS": "1"})

    project.submit, project.cluster = submit, cluster
    yield project
    cluster.run("scancel", "--user=root")
    project.until(lambda: not cluster.run("squeue", "--noheader"))


def result_of(process):
    """Return the exit code and the output."""
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out + (errors or "")


def nodes_of(project):
    """Return the node of each run by its number."""
    (path,) = project.root.glob("multirun/*/slurm/jobs.json")
    return {number: submission.node for number, submission in SubmissionLog(path.parents[1]).entries().items()}
