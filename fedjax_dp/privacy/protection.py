"""The unit, views and noise of an algorithm, derived from its parts."""

from typing import Any

from fedjax_dp import errors
from fedjax_dp.accounting import Unit, View
from fedjax_dp.rounds.algorithm import Algorithm, mechanism_of


def unit_of(algorithm: Algorithm) -> Unit:
    """The unit that the noise protects."""
    return algorithm.upload.unit or Unit.RECORD


def views_of(algorithm: Algorithm) -> tuple[View, ...]:
    """The views of a run's Guarantee: the natural one, and with client models also those of server and public."""
    natural = natural_view(algorithm)
    if not algorithm.local.personal:
        return (natural,)
    return (natural, View.UPLOADS if natural is View.DEPLOYED else View.DEPLOYED)


def natural_view(algorithm: Algorithm) -> View:
    """The strongest adversary that the algorithm protects against."""
    if not algorithm.local.sends_steps and unit_of(algorithm) is Unit.RECORD:
        return View.DEPLOYED  # nothing is sent
    if unit_of(algorithm) is Unit.CLIENT and not algorithm.upload.shared_noise:
        return View.BROADCAST
    return View.SECURE_SUM if algorithm.transport.secret else View.UPLOADS


def view_of(algorithm: Algorithm, view: str | None) -> View:
    """The view of that name, or the natural one; refuses views that the algorithm does not protect against."""
    if view is None:
        return natural_view(algorithm)
    errors.require_choice("view", view, [known.value for known in View])
    if view == View.SECURE_SUM.value and not algorithm.transport.secret:
        raise errors.refuse(
            "view", view, "used with a secure sum: here the server sees every upload", "set secure, or use view uploads"
        )
    return View(view)


def no_epsilon_reason_of(algorithm: Algorithm, view: View) -> str | None:
    """The reason why no epsilon exists, if any."""
    if algorithm.cohort.no_epsilon_reason:
        return algorithm.cohort.no_epsilon_reason
    if algorithm.local.no_epsilon_reason:
        return algorithm.local.no_epsilon_reason
    part = mechanism_of(algorithm)
    if noise_of(algorithm) is None and not getattr(part, "no_epsilon_reason", None):
        return f"{type(part).__name__} has no noise_multiplier, so that nothing is known of its noise"
    if algorithm.aggregate.needs_loss:
        return "clients send the loss of the received model on their records as it is"
    if unit_of(algorithm) is Unit.RECORD:
        if view is View.DEPLOYED and any(not one.noised for one in algorithm.local.additional_releases):
            return "clients' own models are trained without noise (personal_noise 0), and are given away as they are"
        return algorithm.local.privatizer.no_epsilon_reason
    if view is View.DEPLOYED and algorithm.local.personal:
        return "what clients keep is trained without noise, and is given away as it is"
    if algorithm.upload.shared_noise:
        return "a single upload carries only a share of the noise" if view is View.UPLOADS else None
    if view in (View.UPLOADS, View.SECURE_SUM):
        return f"{view} sees clipped updates before the server adds noise; the noise protects against view broadcast"
    return None


def noise_of(algorithm: Algorithm) -> Any:
    """The noise multiplier: one number, or one for each client."""
    return getattr(mechanism_of(algorithm), "noise_multiplier", None)


def noises_steps(algorithm: Algorithm) -> bool:
    """Whether every local step adds noise to its gradient."""
    privatizer = algorithm.local.privatizer
    return getattr(privatizer, "noise_multiplier", None) is not None and not privatizer.on_upload


def clips_records(algorithm: Algorithm) -> bool:
    """Whether every step clips record gradients and adds noise to their sum."""
    bound = getattr(algorithm.local.privatizer, "bound", None)
    clips = bound is not None and bound.per_record and not (bound.no_epsilon_reason or bound.assumption)
    return clips and noises_steps(algorithm)
