"""What reports are made of: a run that is trained here, a sweep written as the program writes one, and JSON that
`fedjax-dp audit --trials 2000 --json` and `fedjax-dp reproduce dpnfl/table2 --scale smoke` have left."""

import os
import pathlib
import shutil

import pytest
from report_inputs import write_sweep

from fedjax_dp import errors
from fedjax_dp.tools import cli

HERE = pathlib.Path(__file__).parent
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
ALONE = [  # no sandbox, as tests may run as root; nothing of the browser's own goes to a network
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A private run with parts of the test set for each client."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    words = "--rounds 6 --local-steps 2 --evaluate-every 2 --holdout 0.2 --train-metrics true --quiet"
    assert cli.main(["run", *words.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def unspent(monkeypatch):
    """Epsilon by round is left out, where a test is about something else."""

    def unknown(*_):
        raise errors.ConfigurationError("not looked for")

    monkeypatch.setattr("fedjax_dp.tools.reports.spending.epsilon_by_round", unknown)


@pytest.fixture
def audit_file(tmp_path):
    return pathlib.Path(shutil.copy(HERE / "audit.json", tmp_path / "audit.json"))


@pytest.fixture
def reproduction_folder(tmp_path):
    folder = tmp_path / "table2"
    folder.mkdir()
    shutil.copy(HERE / "table.json", folder)
    return folder


@pytest.fixture
def sweep_folder(tmp_path):
    """60 points: 2 algorithms x 3 budgets x 2 clip norms x 5 seeds, two of them lost."""
    return write_sweep(tmp_path / "sixty", {"algorithm": ["dpnfl", "addpnfl"], "epsilon": [1.0, 2.0, 4.0]})


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium, or a skip that says what is missing."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: it is in the extra `test`")
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no Chromium is at hand: install one ({', '.join(CHROMIUM)}), or name it with CHROMIUM=")
    with sync.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=ALONE)
        yield made
        made.close()
