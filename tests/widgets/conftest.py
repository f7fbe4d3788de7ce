from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """The module beside this file: tests are imported by path, so it cannot be imported by name."""
    spec = importlib.util.spec_from_file_location("dsv4lab_fake_client", Path(__file__).with_name("fake_client.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
