"""What private federations in public repositories state, and what is proved of them: rows that are deployments."""

import dataclasses
import importlib.resources
import tomllib
from collections.abc import Callable
from typing import Any

from fedjax_dp.tools.deployments.check import Check, check, in_words
from fedjax_dp.tools.deployments.description import Deployment, Source

HERE = importlib.resources.files("fedjax_dp.tools.deployments")


@dataclasses.dataclass(frozen=True)
class SystemRow:
    """One configuration at one commit; `checked` is None where it does not run, for `refused`."""

    id: str
    source: Source
    does: str
    needs: str
    checked: Check | None
    refused: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "refused" if self.checked is None else self.checked.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.refused if self.checked is None else self.checked.reasons

    @property
    def claimed(self) -> str:
        """The epsilon that is stated, in words."""
        claim = None if self.checked is None else self.checked.claim
        return "-" if claim is None else f"{claim.epsilon:g}" + " a round" * (claim.rounds is not None)

    @property
    def alone(self) -> str:
        """Epsilon of the noisy updates, in words."""
        return "-" if self.checked is None else in_words(self.checked.mechanism.epsilon)

    @property
    def everything(self) -> str:
        """Epsilon of all that leaves, in words."""
        whole = None if self.checked is None else self.checked.everything
        return "-" if self.checked is None else in_words(None if whole is None else whole.epsilon)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id,
            "source": self.source.to_dict(),
            "does": self.does,
            "needs": self.needs,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "check": None if self.checked is None else self.checked.to_dict(),
        }


def system_rows(progress: Callable[[int, int], None] | None = None) -> list[SystemRow]:
    """All rows, each number computed anew. `progress` is called with (rows done, rows in all)."""
    written = tomllib.loads((HERE / "systems.toml").read_text(encoding="utf-8"))["row"]
    rows = []
    for done, row in enumerate(written, 1):
        rows.append(_row(row))
        if progress:
            progress(done, len(written))
    return rows


def _row(row: dict[str, Any]) -> SystemRow:
    words = (row["does"], row["needs"])
    if "refused" in row:
        return SystemRow(row["id"], Source.from_dict(row["source"]), *words, None, tuple(row["refused"]))
    deployment = Deployment.from_dict(row["deployment"])
    return SystemRow(row["id"], deployment.source, *words, check(deployment))
