"""Refusals name what is missing, and where to get it."""

import pathlib
import sys
import tomllib

import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp.data import idx
from fedjax_dp.sweeps import table
from fedjax_dp.tools.reports import page


def _csv(folder):
    (folder / "a.csv").write_text("x,label\n1,0\n2,1\n")
    return lambda: fdp.load(f"csv:{folder / 'a.csv'}")


USES = {  # of packages that an extra brings
    "csv": ("pandas", "tables", _csv),
    "parquet": ("pyarrow", "tables", lambda folder: lambda: fdp.load(f"parquet:{folder / 'a.parquet'}")),
    "hf": ("pyarrow", "tables", lambda folder: lambda: fdp.load(f"hf:{folder}")),
    "store": ("pyarrow", "tables", lambda folder: lambda: fdp.data.save_store(ragged_data([3, 4]), folder / "store")),
    "table": ("pandas", "tables", lambda folder: lambda: table.tidy([], [])),
    "summary": ("pandas", "tables", lambda folder: lambda: table.summary([], [])),
    "report": ("vl_convert", "report", lambda folder: page._library.__wrapped__),
    "download": ("pooch", "download", lambda folder: lambda: idx.images("mnist", folder)),
}


@pytest.mark.parametrize("use", USES)
def test_a_missing_package_is_one_line_that_names_its_extra(use, tmp_path, monkeypatch):
    package, extra, prepare = USES[use]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    line = refusal(prepare(tmp_path))
    assert line.startswith(f"{package} must be installed ")
    assert line.endswith(f'pip install "fedjax-dp[{extra}]"')


def test_every_extra_is_in_that_of_tests():
    text = (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    named = set(extras["test"][0].removeprefix("fedjax-dp[").rstrip("]").split(","))
    assert named == set(extras) - {"test", "accelerators"}  # those compilers want an environment of their own
