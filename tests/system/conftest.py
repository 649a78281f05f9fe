"""A browser for the tests of pages."""

from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
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
