"""Places for files of data."""

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for data, an empty cache, and no other place to look."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    monkeypatch.delenv("FEDJAX_DP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def real(mnist_dir):
    """Finds a file of the real data sets, or skips."""

    def find(*parts):
        path = mnist_dir.joinpath(*parts)
        if not path.is_file():
            pytest.skip(f"{path.name} is not at hand")
        return mnist_dir

    return find
