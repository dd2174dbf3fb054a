"""Small runs on the digits, and what stops them."""

import pytest

import fedjax_dp as fdp
from fedjax_dp.experiments import run_folder
from fedjax_dp.experiments.console import Screen
from fedjax_dp.tools import cli

QUIET = Screen(quiet=True)
PRIVATE = {"cohort_size": 5, "batch_size": 10, "local_steps": 2, "learning_rate": 0.1}
PRIVATE |= {"clip_norm": 1.0, "noise_multiplier": 2.0}


def dpnfl(**changed):
    return fdp.dpnfl(**PRIVATE | changed)


def account(capsys, *words):
    """The exit code of `fedjax-dp account --ledger`, and what it printed."""
    code = cli.main(["account", "--ledger", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


class Stopped(BaseException):
    """What a kill looks like from inside."""


def stop_at(round_index, error=Stopped):
    def stop(evaluation):
        if evaluation.round >= round_index:
            raise error

    return stop


def run_killed(algorithm, data, folder, after=3, **words):
    """A run that ends after so many rounds, as by a kill."""
    keep = run_folder.RunFolder.keep

    def keep_and_end(self, state, params, history, checkpoint):
        keep(self, state, params, history, checkpoint)
        if int(state.round) == after:
            raise Stopped

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_folder.RunFolder, "keep", keep_and_end)
        with pytest.raises(Stopped):
            fdp.run(algorithm, data, out=folder, **words)
