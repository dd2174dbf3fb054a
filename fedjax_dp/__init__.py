"""Differentially private federated learning, simulated: clients are an axis, a round is one compiled program.

Start with `load` or `dataset`, `federate`, an algorithm such as `dpnfl`, and `run`; go on with `sweep` and `audit`.
`CATALOGUE` and `algorithms` have every algorithm; `parts` has what they are made of. Names are loaded when first used,
so that `fedjax_dp.accounting` works without JAX.
"""

import pathlib
import re
from typing import Any

import lazy_loader

from fedjax_dp import devices, errors, hooks

__version__ = "0.2.0"

_load, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
_START = "load dataset federate model run resume open_run guarantee calibrate sweep open_sweep audit check reproduce"
_START += " fedavg dp_fedavg dp_sgd dpnfl CATALOGUE algorithms parts models data accounting figures"


def __dir__() -> list[str]:
    """What one starts with, as completion shows it; `__all__` has every name."""
    return _START.split()


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _load(name)
    home = _home(name)
    meant = "" if home or name.startswith("_") else errors.suggestion(name, __all__)
    raise AttributeError(f"module 'fedjax_dp' has no attribute {name!r}{home}{'; ' * bool(meant)}{meant}")


def _home(name: str) -> str:
    """Where else a name stands, read from what the namespaces list; nothing is loaded for it."""
    here = pathlib.Path(__file__).parent
    if name.startswith("_") or (here / f"{name}.py").exists():  # a module, which is about to be imported
        return ""
    for listing in sorted([*here.glob("*/__init__.py*"), *here.glob("tools/*/__init__.py*")]):
        if re.search(rf"(?:import |^    \"){name}\b", listing.read_text(), re.MULTILINE):
            return f"; it is fedjax_dp.{listing.parent.name}.{name}"
    return ""


hooks.plot_run.connect("fedjax_dp.tools.figures.runs:plot_run")
hooks.plot_sweep.connect("fedjax_dp.tools.figures.sweeps:plot_sweep")
hooks.dataset_of_table.connect("fedjax_dp.tools.formats.columns:from_frame")
hooks.claims_about.connect("fedjax_dp.tools.papers.claims:claims_about")
hooks.prescribed_noise.connect("fedjax_dp.tools.papers.noise:prescribed_noise")
hooks.NOISE_RULES += (
    "dpnfl",
    "cpfed",
    "acs_pldp",
    "dp_fedavg_output",
    "mr_mtl",
)  # whose theorem or code says the noise
devices.use_all_cores()  # before JAX makes its devices
devices.share_one_arena()  # before its threads allocate
