"""Accounting speed: our loss-distribution and Renyi accountants against dp-accounting and prv-accountant.

    python benchmarks/accounting.py --json

Poisson-sampled Gaussian steps under add-remove, which all of them cover. The programs take turns in this process, so a
busy machine slows all of them; read the ratios. Before timing, the epsilons are checked to agree. Needs the extra
`test`, which installs the other programs.
"""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time
import warnings

import numpy as np

from fedjax_dp import accounting, devices

SETTINGS = {
    "1e4 steps": {"noise": 1.0, "rate": 0.01, "steps": 10_000, "delta": 1e-5},
    "1e6 steps": {"noise": 1.0, "rate": 0.001, "steps": 1_000_000, "delta": 1e-5},
}
RESULTS = pathlib.Path(__file__).parent / "results"


def ours(accountant):
    def epsilon(noise, rate, steps, delta):
        event = accounting.GaussianSteps(noise, accounting.Poisson(rate), accounting.Adjacency.ADD_REMOVE, steps)
        return accounting.cost_of(event, accountant).epsilon(delta)  # `epsilon_of` would remember the answer

    return epsilon


def dp_accounting_pld(noise, rate, steps, delta):
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-4
    )
    return one.self_compose(steps).get_epsilon_for_delta(delta)


def dp_accounting_rdp(noise, rate, steps, delta):
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), steps)
    return accountant.get_epsilon(delta)


def prv(noise, rate, steps, delta):
    import prv_accountant

    mechanism = prv_accountant.PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    accountant = prv_accountant.PRVAccountant(
        prvs=mechanism, max_self_compositions=steps, eps_error=0.01, delta_error=delta / 1000
    )
    return accountant.compute_epsilon(delta=delta, num_self_compositions=steps)[1]


PROGRAMS = {
    "fedjax_dp pld": ours("pld"),
    "dp-accounting pld": dp_accounting_pld,
    "prv-accountant": prv,
    "fedjax_dp rdp": ours("rdp"),
    "dp-accounting rdp": dp_accounting_rdp,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--write", action="store_true", help="also write benchmarks/results/accounting.json")
    arguments = parser.parse_args()
    results = measure(arguments.repeats)
    if arguments.write:
        (RESULTS / "accounting.json").write_text(json.dumps(results, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(results))
        return
    for setting, rows in results["settings"].items():
        for program, row in rows.items():
            print(f"{setting:10s} {program:18s} epsilon {row['epsilon']:.5f}  {row['seconds'] * 1e3:9.1f} ms")


def measure(repeats):
    """Median seconds and epsilon of every program in every setting."""
    settings = {}
    for name, setting in SETTINGS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the other programs' own
            epsilons = {program: call(**setting) for program, call in PROGRAMS.items()}  # imports, too
            check(epsilons)
            seconds = {program: [] for program in PROGRAMS}
            for turn in range(repeats):
                print(f"{name}: {turn + 1} of {repeats}", file=sys.stderr)
                for program, call in PROGRAMS.items():
                    began = time.perf_counter()
                    call(**setting)
                    seconds[program].append(time.perf_counter() - began)
        settings[name] = {
            program: {"epsilon": epsilons[program], "seconds": statistics.median(times), "seconds_all": times}
            for program, times in seconds.items()
        }
    packages = ("fedjax-dp", "numpy", "scipy", "dp-accounting", "prv-accountant")
    return {
        "settings": settings,
        "ratio_pld": {name: ratio(rows, "dp-accounting pld", "fedjax_dp pld") for name, rows in settings.items()},
        "ratio_rdp": {name: ratio(rows, "dp-accounting rdp", "fedjax_dp rdp") for name, rows in settings.items()},
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "cores": devices.cores(),
        "date": datetime.date.today().isoformat(),
    }


def check(epsilons):
    """The loss-distribution programs agree to 0.2%, the Renyi ones to 1%, and Renyi is looser."""
    exact = epsilons["dp-accounting pld"]
    for program in ("fedjax_dp pld", "prv-accountant"):
        assert np.isclose(epsilons[program], exact, rtol=2e-3), epsilons
    assert np.isclose(epsilons["fedjax_dp rdp"], epsilons["dp-accounting rdp"], rtol=1e-2), epsilons
    assert epsilons["fedjax_dp rdp"] > exact


def ratio(rows, slow, fast):
    """Median of the ratios of times measured next to each other."""
    pairs = zip(rows[slow]["seconds_all"], rows[fast]["seconds_all"], strict=True)
    return statistics.median(a / b for a, b in pairs)


if __name__ == "__main__":
    main()
