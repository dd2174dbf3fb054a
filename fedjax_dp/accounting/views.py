"""Adversaries, and the noise that remains in what they see."""

import dataclasses
import enum
import math
from typing import Any, TypeVar

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError, Unit
from fedjax_dp.accounting.releases import Release
from fedjax_dp.accounting.sampling import FullBatch, Sampling, TruncatedPoisson, WithoutReplacement, WithReplacement

Steps = TypeVar("Steps", bound=Release)


class View(enum.Enum):
    """The adversary. In every view but the first, the noise of the other honest clients helps."""

    UPLOADS = "uploads"  # the server, which receives each client's own message: client sampling hides nothing
    SECURE_SUM = "secure_sum"  # a server that receives the sum over the cohort, and knows who is in it
    BROADCAST = "broadcast"  # other clients, who receive every round's model
    FINAL_MODEL = "final_model"  # somebody who is no client and gets the trained model
    OWNER = "owner"  # a client, with what it receives and its own model: hides what the other clients hold
    DEPLOYED = "deployed"  # everybody, who gets all clients' own models

    def __str__(self) -> str:
        return {
            View.UPLOADS: "a server that sees every upload",
            View.SECURE_SUM: "a server that sees only the sum of each round's uploads",
            View.BROADCAST: "other clients, who see every round's model",
            View.FINAL_MODEL: "outsiders who see the trained model",
            View.OWNER: "any other client, who sees every round's model and has one of its own",
            View.DEPLOYED: "everybody, to whom all clients' own models are given",
        }[self]

    def sees_more_than(self, other: "View") -> bool:
        """Whether it sees more of the training than the other view; False for the clients' own models."""
        ranked = (View.FINAL_MODEL, View.BROADCAST, View.SECURE_SUM, View.UPLOADS)
        return self in ranked and other in ranked and ranked.index(self) > ranked.index(other)


def helpers_of(members: int, view: View, colluders: int) -> int:
    """Number of cohort members that help the adversary; in views of clients the adversary is one of them."""
    errors.require_integer("colluders", colluders, 0, members - 1, "at least one client of the cohort is honest")
    return max(colluders, 1) if view in (View.BROADCAST, View.OWNER, View.DEPLOYED) else colluders


def steps_in_view(
    own: Steps,
    view: View | str,
    *,
    cohort_size: int,
    colluders: int = 0,
    local_steps: int = 1,
) -> Steps:
    """The noisy steps of one client as `view` sees them, if all clients of a cohort add equal noise.

    own            the client's own steps as the server sees them (unit client: each of `cohort_size` clients adds noise
                   to its clipped update; if a trusted server adds the noise, cohort_size is 1);
    colluders      clients of the cohort that share their messages with the adversary; in views `broadcast`, `owner` and
                   `deployed` the adversary is a client that knows its own noise, so at least one colluder counts;
    local_steps    tau, the noisy steps between two uploads.

    | tau = 1                          | the noises of the h = cohort_size - colluders honest clients add up: h z^2 |
    | otherwise, and in view `uploads` | own noise only: the sum is computed from the uploads; so for noise that    |
    |                                  | does not add up to noise of its kind                                       |

    The cpfed paper counts h z^2 for tau > 1 too. A client with a linear loss among clients whose step forgets its start
    has no more than z^2 (tau + h - 1) / tau.

    Client sampling does not amplify the privacy of a record: another client's whole update, which may differ by more
    than one record's clip norm, can reveal the cohort. It amplifies events of unit client, in views that do not show
    the cohort.
    Raises: ConfigurationError unless 0 <= colluders < cohort_size; NotCoveredError for sampled clients in a view that
            shows who takes part, and for noise of several clients where neighbours differ in the number of clients.
    """
    if not isinstance(view, View):
        errors.require_choice("view", view, [known.value for known in View])
        view = View(view)
    if own.unit is Unit.CLIENT and own.sampling.rate < 1 and view in (View.UPLOADS, View.SECURE_SUM):
        raise NotCoveredError(
            f"{view} knows which clients take part, so sampling clients amplifies nothing there; use no sampling and "
            "random participation, or view broadcast"
        )
    if own.unit is Unit.CLIENT and view is View.DEPLOYED:
        raise NotCoveredError("clients' own models have no noise of the sum of updates: use view broadcast")
    errors.require_count("cohort_size", cohort_size)
    errors.require_count("local_steps", local_steps)
    if own.unit is Unit.CLIENT and cohort_size > 1 and isinstance(own.sampling, WithoutReplacement):
        drawn = own.sampling.batch_size  # who adds the noise
        if cohort_size != drawn:
            raise errors.refuse("cohort_size", cohort_size, f"{drawn}, the clients that are drawn", "or 1, of a server")
    if own.unit is Unit.CLIENT and (known := helpers_of(cohort_size, view, colluders)):
        changed: Any = own
        if (others := _of_others(own.sampling, known)) != own.sampling:
            own = dataclasses.replace(changed, sampling=others)
    honest = max(cohort_size - helpers_of(cohort_size, view, colluders), 1)
    fixed = own.adjacency is Adjacency.REPLACE_ONE and isinstance(own.sampling, FullBatch | WithoutReplacement)
    if own.unit is Unit.CLIENT and cohort_size > 1 and not fixed:
        raise NotCoveredError(
            "clients that add noise themselves take it with them when they leave, so only replace-one neighbours and "
            "cohorts of fixed size are covered; give cohort size 1 if a server adds the noise"
        )
    adds_up = view not in (View.UPLOADS, View.DEPLOYED) and own.adds_up and local_steps == 1
    return own.scaled(math.sqrt(honest if adds_up else 1.0))


def _of_others(sampling: Sampling, known: int) -> Sampling:
    """The sampling of the other members, to an adversary who knows of `known` members whether they are drawn."""
    if isinstance(sampling, TruncatedPoisson):
        raise NotCoveredError("a truncated cohort hides nobody from a client that is in it: use view final_model")
    if isinstance(sampling, WithoutReplacement):
        others = max(sampling.records - known, 1)
        return WithoutReplacement(min(sampling.batch_size, others), others)
    if isinstance(sampling, WithReplacement):
        return WithReplacement(sampling.draws, max(sampling.records - known, 1))
    return sampling
