"""The result of an audit and its verdict in one line."""

import dataclasses
from typing import Any

from fedjax_dp import accounting
from fedjax_dp.accounting import Event, Guarantee, Unit
from fedjax_dp.display import Card, displayed, downward, finite, upward
from fedjax_dp.tools.audits.hypothesis_test import Outcome
from fedjax_dp.tools.audits.one_run import Guesses
from fedjax_dp.tools.audits.setup import AttackOptions, AuditSetup


@displayed
@dataclasses.dataclass(frozen=True)
class Audit:
    """The result of an audit.

    epsilon       the stated epsilon of the audited client at the Guarantee's delta;
    claim         a claimed epsilon that is tested instead, or None;
    lower         lower bound on epsilon with confidence 1 - significance, if noise and sampling are of the stated kind
                  and only their size is unknown;
    of_any        lower bound for any mechanism: with n trials at most about ln n;
    noise         upper bound on the noise relative to the stated noise, under the same hypothesis as `lower`;
    proved        the attack errs less often than any attack on the stated mechanism could, or `lower` is above `claim`;
    contradiction a violation that inspection of user-defined parts found, or None: flows of records and repeated noise
                  that trials with one canary need not show;
    repeat        the command that repeats the audit, with the same algorithm, data and model.
    """

    guarantee: Guarantee
    client: int
    name: str  # of the client, or its number
    epsilon: float
    claim: float | None
    lower: float
    of_any: float
    noise: float
    proved: bool
    canary: str
    outcome: Outcome | Guesses
    event: Event
    accountant: str
    trials: int
    significance: float
    seed: int
    seconds: float
    repeat: str
    contradiction: str | None = None

    @property
    def violated(self) -> bool:
        """Whether trials or inspection refute the claim, or without one the stated epsilon."""
        return self.proved or (self.claim is None and self.contradiction is not None)

    @property
    def training_only(self) -> bool:
        """Whether the Guarantee covers training alone, without earlier phases or other releases."""
        return self.guarantee.caveat is not None

    @property
    def confidence(self) -> str:
        return f"{100 * (1 - self.significance):.4g}%"

    @property
    def tested_epsilon(self) -> float:
        """The claim, or else the stated epsilon."""
        return self.epsilon if self.claim is None else self.claim

    @property
    def refuted_claims(self) -> tuple[str, ...]:
        """Claims of papers about this run that `lower` contradicts."""
        return tuple(
            str(claim)
            for claim in self.guarantee.claims
            if claim.epsilon is not None
            and claim.delta == self.guarantee.delta
            and claim.epsilon < self.lower
            and claim.client in (None, self.client)
            and claim.rounds is None
        )

    @property
    def verdict(self) -> str:
        unit = "one record of client" if self.guarantee.unit is Unit.RECORD else "client"
        whom = f"at delta {self.guarantee.delta:g} for {unit} {self.name} against {self.guarantee.view}"
        stated = "claimed" if self.claim is not None else f"stated{' of the training alone' * self.training_only}"
        tested = f"epsilon {upward(self.tested_epsilon)} is {stated} {whom}"
        sure, evidence = f"with confidence {self.confidence}", self.outcome.evidence
        condition = ", if noise and sampling are of the stated kind" if self.lower > self.of_any else ""
        if self.violated and not self.proved:
            least = downward(self.lower)
            return f"VIOLATED: {tested}, but {self.contradiction}; {evidence} alone prove at least {least} {sure}"
        if not self.violated:
            proved = f"at least {downward(self.lower)}" if self.lower > 0 else "nothing against it"
            return f"consistent: {tested}; {proved} is proved {sure} by {evidence}{condition}"
        if self.lower > self.tested_epsilon:
            proved = f"more than {downward(self.lower)} is proved {sure} by {evidence}{condition}"
        else:
            proved = f"{evidence} prove {sure} that the mechanism is not the stated one"
        less = f"; the noise is at most {self.noise:.3g} times what is stated" if self.noise < 1 else ""
        chance = f"at most 1 in {1 / self.significance:,.0f} true statements is called so by chance: try another seed"
        return f"VIOLATED: {tested}, but {proved}{less}; {chance}; repeat: {self.repeat}"

    def _card(self) -> Card:
        facts = {
            "stated": str(self.guarantee),
            "proved": f"epsilon at least {downward(self.lower)}",
            "whatever the mechanism": f"epsilon at least {downward(self.of_any)}",
            "trials": f"{self.trials:,}",
            "canary": self.canary,
            **({"refuted": "; ".join(self.refuted_claims)} if self.refuted_claims else {}),
            "repeat": self.repeat,
        }
        return Card(self.verdict, facts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "violated": self.violated,
            "proved": self.proved,
            "contradiction": self.contradiction,
            "verdict": self.verdict,
            "epsilon_stated": finite(self.epsilon),
            "epsilon_tested": finite(self.tested_epsilon),
            "epsilon_lower": self.lower,
            "epsilon_lower_of_any_mechanism": self.of_any,
            "noise_at_most": finite(self.noise),
            "delta": self.guarantee.delta,
            "confidence": 1 - self.significance,
            "claim": self.claim,
            "client": self.client,
            "client_name": self.name,
            "view": self.guarantee.view.value,
            "canary": self.canary,
            "trials": self.trials,
            "seed": self.seed,
            "seconds": self.seconds,
            "repeat": self.repeat,
            **self.outcome.to_dict(),
            "refuted_claims": list(self.refuted_claims),
            "guarantee": self.guarantee.to_dict(),
        }


def judge(
    setup: AuditSetup,
    outcome: Outcome | Guesses,
    accountant: str,
    attack: AttackOptions,
    seed: int,
    seconds: float,
    repeat: str,
    contradiction: str | None = None,
) -> Audit:
    """The audit that follows from an outcome."""
    claim = attack.claim
    lower = outcome.epsilon_at_least(setup.event, setup.delta, accountant)
    proved = lower > claim if claim is not None else outcome.contradicts(accounting.trade_off(setup.event, accountant))
    return Audit(
        guarantee=setup.guarantee,
        client=setup.client,
        name=setup.name,
        epsilon=setup.epsilon,
        claim=claim,
        lower=lower,
        of_any=outcome.epsilon_of_any(setup.delta),
        noise=outcome.noise_at_most(setup.event, accountant),
        proved=proved,
        outcome=outcome,
        event=setup.event,
        accountant=accountant,
        canary=attack.canary,
        trials=attack.trials,
        significance=attack.significance,
        seed=seed,
        seconds=seconds,
        repeat=repeat,
        contradiction=contradiction,
    )
