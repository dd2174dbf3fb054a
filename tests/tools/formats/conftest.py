"""What readers of files leave behind: nothing."""

import tempfile

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Temporary files of readers land in a folder that is empty again at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())
