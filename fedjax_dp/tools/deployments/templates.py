"""Templates: what a system's settings mean as a description, with its traps as comments and blanks to fill.

A template is a file of its own, and what a plan writes for the system stands in another beside it. Nothing here knows a
system by its name.
"""

import importlib.resources
import re
import tomllib
from typing import Any

from fedjax_dp import errors
from fedjax_dp.tools.deployments.description import Source

FOLDER = importlib.resources.files("fedjax_dp.tools.deployments") / "templates"


def names() -> list[str]:
    """Of all templates, blank last."""
    found = {path.name.removesuffix(".toml") for path in FOLDER.iterdir() if not path.name.endswith(".plan.toml")}
    return [*sorted(found - {"blank"}), "blank"]


def text_of(name: str) -> str:
    """The file, with its comments and blanks.

    Raises: ConfigurationError for a name that is none.
    """
    errors.require_choice("template", name, names())
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def template(name: str) -> dict[str, Any]:
    """What it says; blanks are "?"."""
    return tomllib.loads(text_of(name))


def settings_of(name: str) -> dict[str, Any]:
    """What a plan writes for the system: its `settings`, or why it is `refused`."""
    text_of(name)  # refuses what is none
    if name == "blank":
        remedy = "without --for the plan is a deployment file"
        raise errors.refuse("for", "blank", "a template of a system", remedy)
    return tomllib.loads((FOLDER / f"{name}.plan.toml").read_text(encoding="utf-8"))


def require_version(source: Source) -> None:
    """Refuse a version of a system that is newer than the one at which its templates were read."""
    if source.version is None:
        return
    for name in names():
        read = Source.from_dict(template(name).get("source", {}))
        if read.system == source.system and read.version and _numbers(source.version) > _numbers(read.version):
            raise errors.refuse(
                "source.version",
                source.version,
                f"at most {read.version}, at which template {name} was read",
                f'confirm that nothing changed with version = "{read.version}", or use template blank',
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
