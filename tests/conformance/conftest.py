"""The command puts the current folder on the path, as `python` does: not for the tests after."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
