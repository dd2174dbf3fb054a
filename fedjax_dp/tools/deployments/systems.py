"""Private federations in public repositories: their claims, and what is proved about them."""

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
    """One configuration at one commit; `check` is None if it does not run, for the reasons `refused`."""

    id: str
    source: Source
    does: str
    needs: str
    check: Check | None
    refused: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "refused" if self.check is None else self.check.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.refused if self.check is None else self.check.reasons

    @property
    def claim_text(self) -> str:
        """The claimed epsilon in words."""
        claim = None if self.check is None else self.check.claim
        return "-" if claim is None else f"{claim.epsilon:g}" + " a round" * (claim.rounds is not None)

    @property
    def noisy_text(self) -> str:
        """The epsilon of the noisy updates in words."""
        return "-" if self.check is None else in_words(self.check.mechanism.epsilon)

    @property
    def total_text(self) -> str:
        """The epsilon of everything that is sent, in words."""
        whole = None if self.check is None else self.check.total
        return "-" if self.check is None else in_words(None if whole is None else whole.epsilon)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "source": self.source.to_dict(),
            "does": self.does,
            "needs": self.needs,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "check": None if self.check is None else self.check.to_dict(),
        }


def system_rows(progress: Callable[[int, int], None] | None = None) -> list[SystemRow]:
    """Compute all rows. `progress` is called with (rows done, total rows)."""
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
