"""What the numbers of a benchmark were made with."""

import datetime
import pathlib
import subprocess
from typing import Any

from fedjax_dp.experiments import environment


def made_with() -> dict[str, Any]:
    """Hardware, versions, day and commit, as every result has them."""
    return {
        "hardware": environment.device(),
        "versions": environment.versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
    }


def commit() -> str:
    """The commit that is measured."""
    here = pathlib.Path(__file__).parent
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=here, capture_output=True, text=True, check=False).stdout.strip()
