"""Templates: a system's settings as a description, with its pitfalls as comments and blanks to fill in.

Each template is a file, with a second file for the settings that a plan writes. This code depends on no system.
"""

import importlib.resources
import re
import tomllib
from typing import Any

from fedjax_dp import errors
from fedjax_dp.tools.deployments.description import Source

FOLDER = importlib.resources.files("fedjax_dp.tools.deployments") / "templates"


def names() -> list[str]:
    """The names of all templates, with blank last."""
    found = {path.name.removesuffix(".toml") for path in FOLDER.iterdir() if not path.name.endswith(".plan.toml")}
    return [*sorted(found - {"blank"}), "blank"]


def text_of(name: str) -> str:
    """The content of a template with its comments and blanks.

    Raises: ConfigurationError for an unknown name.
    """
    errors.require_choice("template", name, names())
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def template(name: str) -> dict[str, Any]:
    """The facts of a template; blanks are "?"."""
    return tomllib.loads(text_of(name))


def settings_of(name: str) -> dict[str, Any]:
    """The settings that a plan writes for a system: `settings`, or the reason `refused`."""
    text_of(name)  # refuses unknown names
    if name == "blank":
        remedy = "without --for the plan is a deployment file"
        raise errors.refuse("for", "blank", "a template of a system", remedy)
    return tomllib.loads((FOLDER / f"{name}.plan.toml").read_text(encoding="utf-8"))


def require_version(source: Source) -> None:
    """Refuse a system version that is newer than the one its template describes."""
    if source.version is None:
        return
    for name in names():
        read = Source.from_dict(template(name).get("source", {}))
        if read.system == source.system and read.version and _numbers(source.version) > _numbers(read.version):
            raise errors.refuse(
                "source.version",
                source.version,
                f"at most {read.version}, which template {name} describes",
                f'confirm that nothing changed with version = "{read.version}", or use template blank',
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
