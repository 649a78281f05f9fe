"""The site of the documentation, opened as files."""

import shutil

import pytest
from project import ROOT, put
from system.conftest import new_page

pytestmark = pytest.mark.system

PAGE = """<script src="iframe-worker.js"></script><script>
const worker = new Worker(new URL("double.js", location)), answers = []
worker.addEventListener("message", ({data}) => answers.push(data.doubled))
for (const number of [1, 2, 3]) worker.postMessage({number})
</script>"""
WORKER = """addEventListener("message", async ({data}) => postMessage({doubled: 2 * data.number}))"""


def test_worker_of_the_search_runs_without_a_server(browser, tmp_path):
    put(tmp_path, {"index.html": PAGE, "double.js": WORKER})
    shutil.copy(ROOT / "docs/iframe-worker.js", tmp_path)
    page = new_page(browser)
    page.goto(f"file://{tmp_path}/index.html")
    page.wait_for_function("answers.length == 3")
    assert page.evaluate("answers") == [2, 4, 6]
    assert page.errors == []
    assert all(url.startswith(("file:", "about:")) for url in page.requests)
