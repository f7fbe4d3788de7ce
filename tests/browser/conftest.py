from __future__ import annotations

from collections.abc import Iterator

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tests.browser.jupyter import PATIENCE_MS, Server, serving  # noqa: E402

LAPTOP = {"width": 1366, "height": 768}
playwright.expect.set_options(timeout=PATIENCE_MS)  # five seconds by default, which a busy machine may need


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A JupyterLab server."""
    with serving(tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture
def page(browser: playwright.Browser) -> Iterator[playwright.Page]:
    """A page of a laptop's size."""
    context = browser.new_context(viewport=LAPTOP, accept_downloads=True)
    yield context.new_page()
    context.close()
