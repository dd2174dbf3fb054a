"""Small runs on the digits, and what stops them."""

import pytest

import fedjax_dp as fdp
from fedjax_dp.experiments import run_folder


def dpnfl(**changed):
    words = {"cohort_size": 5, "batch_size": 10, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.dpnfl(**(words | {"noise_multiplier": 2.0} | changed))


class Stopped(BaseException):
    """What a kill looks like from inside."""


def stop_at(round_index, error=Stopped):
    def stop(evaluation):
        if evaluation.round >= round_index:
            raise error

    return stop


def run_killed(algorithm, data, folder, **words):
    """A run that ends after round 3, as by a kill."""
    keep = run_folder.RunFolder.keep

    def keep_and_end(self, state, params, history, checkpoint):
        keep(self, state, params, history, checkpoint)
        if int(state.round) == 3:
            raise Stopped

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_folder.RunFolder, "keep", keep_and_end)
        with pytest.raises(Stopped):
            fdp.run(algorithm, data, out=folder, **words)
