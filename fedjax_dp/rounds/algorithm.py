"""An algorithm: six slots, each with a part."""

from typing import Any, cast

import numpy as np

from fedjax_dp import errors
from fedjax_dp.display import Card, displayed, facts_of
from fedjax_dp.parts.aggregation import Aggregate, needs_individual_updates
from fedjax_dp.parts.client_privacy import PlainUpload, SharedNoise, UpdatePrivatizer
from fedjax_dp.parts.cohorts import Cohort, prefix_of
from fedjax_dp.parts.facts import of_the_project, own_methods
from fedjax_dp.parts.local_training import LocalTraining
from fedjax_dp.parts.server_optimizers import ServerOptimizer
from fedjax_dp.parts.transport import PlainSum, Transport
from fedjax_dp.pytrees import check_part, replace, value


@displayed
@value
class Algorithm:
    """A federated algorithm: sampling of clients, local training, protection of updates, aggregation, transport, and
    the server's optimizer."""

    cohort: Cohort
    local: LocalTraining
    upload: UpdatePrivatizer = PlainUpload()
    aggregate: Aggregate
    transport: Transport = PlainSum()
    server: ServerOptimizer

    @property
    def goes_by_rates(self) -> bool:
        """Whether a round may depend on the clients' expected participation; user-defined parts always may."""
        parts = (self.aggregate, getattr(self.aggregate, "weigh", self.aggregate), self.upload)
        return self.aggregate.needs_rates or self.upload.extra > 0 or not all(map(of_the_project, parts))

    def prefix(self, rounds: int) -> "Algorithm":
        """The algorithm of the first `rounds` rounds, if a participation log has more."""
        return replace(self, cohort=prefix_of(self.cohort, rounds))

    def _card(self) -> Card:
        return Card("algorithm", facts_of(self))


def mechanism_of(algorithm: Algorithm) -> Any:
    """The part whose noise protects records or whole clients."""
    return algorithm.local.privatizer if algorithm.upload.unit is None else algorithm.upload


def with_noise(algorithm: Algorithm, noise_multiplier: Any) -> Algorithm:
    """The algorithm with another noise multiplier."""
    mechanism = replace(mechanism_of(algorithm), noise_multiplier=noise_multiplier)
    if algorithm.upload.unit is not None:
        return replace(algorithm, upload=mechanism)
    return replace(algorithm, local=replace(algorithm.local, privatizer=mechanism))


def without_noise(algorithm: Algorithm) -> Algorithm:
    """The algorithm, and the same program, with noise multiplier 0 if it has any noise."""
    noise = getattr(mechanism_of(algorithm), "noise_multiplier", None)
    return algorithm if noise is None else with_noise(algorithm, np.zeros_like(noise, np.float32))


def check_fit(algorithm: Algorithm, shares: np.ndarray) -> None:
    cohort, aggregate, upload = algorithm.cohort, algorithm.aggregate, algorithm.upload
    check_part(aggregate, cohort, len(shares))
    rates, positions = cohort.rates(shares), cohort.capacity(len(shares))
    name = type(cohort).__name__
    if rates is None and (aggregate.needs_rates or upload.extra):
        raise errors.refuse("estimator", type(aggregate).__name__, f"mean or renorm: the rates of {name} are unknown")
    if cohort.max_participations > 1 and algorithm.local.has_client_state:
        raise errors.refuse("draws one by one", True, "False with client state", "train each client once")
    if len(shares) * cohort.max_participations > 2**32:  # keys of draws would repeat
        got = f"{len(shares):,} clients x {cohort.max_participations:,}"
        raise errors.refuse("draws one by one", got, "at most 2^32 clients x draws", "lower cohort_size")
    if cohort.max_participations > 1 and algorithm.transport.secret:
        raise errors.refuse("draws one by one", True, "False for secure sums", "masks are shared by distinct clients")
    if algorithm.transport.secret and needs_individual_updates(aggregate):
        wanted = "one of sums in a secure sum, which hides individual updates"
        raise errors.refuse("estimator", type(aggregate).__name__, wanted, "leave secure out, or use mean")
    if upload.unit is None:
        return
    if own := own_methods(
        (algorithm.local, *(part for _, part in algorithm.local.parts)), "send", "exchange", "absorb"
    ):
        remedy = "what they do depends on who takes part, which noise does not hide there; protect records instead"
        raise errors.refuse("methods of your own", ", ".join(own), "none under noise on whole clients", remedy)
    if algorithm.local.has_client_state and not algorithm.local.separable_state:
        raise errors.refuse(
            "client state",
            "rows that others read",
            "read only by its client under noise on whole clients",
            "declare separable_state, if nobody else reads it",
        )
    if algorithm.local.sends_auxiliary:
        raise errors.refuse(
            "what clients send in addition to updates",
            "something",
            "nothing under noise on whole clients",
            "it would bypass that noise; noise the gradients instead",
        )
    if algorithm.transport.secret and not aggregate.alike:
        raise errors.refuse(
            "estimator",
            type(aggregate).__name__,
            "one of equal weights for noise on whole clients in a secure sum",
            "rounding to the ring is counted for weight 1",
        )
    if aggregate.sensitivity(shares, rates, 1) is None:
        raise errors.refuse(
            "estimator",
            type(aggregate).__name__,
            "one that bounds the influence of a client, for noise on whole clients",
            "use the bounded mean of dp_fedavg, wor_delta, or mean with a cohort of fixed size"
            + ("" if of_the_project(aggregate) else "; or return a number from its sensitivity"),
        )
    if not cohort.at_most_once or (aggregate.realised and not cohort.fixed):
        raise errors.refuse(
            "cohort",
            name,
            "of a fixed size for a mean over it with noise on whole clients"
            if cohort.at_most_once
            else "one that draws a client at most once a round for noise on whole clients",
            "use a uniform cohort, or Poisson with the bounded mean"
            + ("" if cohort.at_most_once or of_the_project(cohort) else "; or declare at_most_once = True if it is so"),
        )
    if not upload.shared_noise:
        return
    if not (cohort.fixed and algorithm.transport.secret and aggregate.alike):
        raise errors.refuse(
            "noise",
            f"shared through {type(algorithm.transport).__name__} with {name}",
            "shared only in secure sums of equal weights over cohorts of fixed size",
            "else the shares do not add up",
        )
    cast(SharedNoise, upload).check_resolution(algorithm.transport.resolution, positions)
