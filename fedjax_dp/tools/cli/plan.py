"""`fedjax-dp plan`: the noise that meets a budget, in another system's own settings."""

import dataclasses
import pathlib
from typing import Annotated

from fedjax_dp import folders
from fedjax_dp.options import about
from fedjax_dp.tools.cli.options import PrintOptions, missing, parse
from fedjax_dp.tools.cli.output import print_json
from fedjax_dp.tools.deployments.description import read
from fedjax_dp.tools.deployments.plan import FREE, plan

DESCRIPTION = """Find the least noise with which a federation that another system runs meets a budget.

usage: fedjax-dp plan DEPLOYMENT.toml --epsilon E [--delta D] [--for NAME] [-o FILE] [--json]

The file is that of fedjax-dp check; its noise.std may be blank."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions(PrintOptions):
    """For what noise is found.

    Args:
        deployment: file that describes the federation
        epsilon: privacy budget
        delta: delta, instead of that of the file
        system: template of the system in whose settings the plan is written
        output: write the plan to this new file
    """

    deployment: Annotated[str | None, about("", positional=True, metavar="DEPLOYMENT.toml")] = None
    epsilon: Annotated[float | None, about("", default="required")] = None
    delta: Annotated[float | None, about("")] = None
    system: Annotated[str | None, about("", short="--for", metavar="NAME")] = None
    output: Annotated[str | None, about("", short="-o", metavar="FILE")] = None


def plan_command(arguments: list[str]) -> int:
    options = parse("plan", arguments, PlanOptions, DESCRIPTION)
    if options.deployment is None:
        raise missing("deployment")
    if options.epsilon is None:
        raise missing("epsilon")
    deployment = read(options.deployment, free=FREE)
    planned = plan(deployment, epsilon=options.epsilon, delta=options.delta, system=options.system)
    if options.output is not None:
        folders.write_new("output", pathlib.Path(options.output), planned.to_toml())
    if options.json:
        return print_json(planned.to_dict())
    if options.output is not None:
        print(f"{planned.check.statement}\nwrote {options.output}")
    else:
        print(planned.to_toml(), end="")
    return 0
