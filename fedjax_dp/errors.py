"""One wording for every refusal: what, got, wanted, remedy. No JAX here, so accounting can use it."""

import contextlib
import difflib
import importlib.util
import math
import numbers
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
PICTURES = (".png", ".pdf", ".svg")


class ConfigurationError(ValueError):
    """The request cannot be carried out as asked; the message is one line that says what to change."""

    what: str | None = None  # the option that it is about, where it is one


class MissingDataError(ConfigurationError):
    """A data set is not at hand; the message says what to get and where it belongs."""


def _list_clients(clients: list[int], called: Callable[[int], str]) -> str:
    return ", ".join(map(called, clients[:10])) + (", ..." if len(clients) > 10 else "")


class DivergedError(RuntimeError):
    """A loss or an update stopped being finite; `clients` is empty if it was the loss on the test set."""

    def __init__(self, round_index: int, clients: list[int], called: Callable[[int], str] = str):
        self.round, self.clients = round_index, clients
        source = f"clients {_list_clients(clients, called)}" if clients else "the test set"
        super().__init__(
            f"training diverged in round {round_index}: loss and update must be finite, got NaN or infinity from "
            f"{source}; lower the learning rate"
        )


class RingOverflowError(RuntimeError):
    """A message did not fit into the ring of a secure sum."""

    def __init__(self, round_index: int, clients: list[int], called: Callable[[int], str] = str):
        self.round, self.clients = round_index, clients
        super().__init__(
            f"the secure sum overflowed in round {round_index}: every number must fit its share of the ring, got a "
            f"larger one from clients {_list_clients(clients, called)}; use 64 ring bits or fewer fractional bits"
        )


class LostError(RuntimeError):
    """A process of a run, or its parent, finds that the run cannot go on; `reason` says what has ended."""

    def __init__(self, reason: str):
        super().__init__(
            f"the run has ended: {reason}; fedjax-dp run --resume DIR continues from the last checkpoint, with any "
            "number of processes"
        )


class StorageError(RuntimeError):
    """The machine failed to store something: its disk is full, a quota is used up; what was stored before is whole."""

    def __init__(self, where: str, reason: str, remedy: str = ""):
        super().__init__(f"{where} could not be written: {reason}" + (f"; {remedy}" if remedy else ""))


def refuse(what: str, got: Any, wanted: str, remedy: str = "") -> ConfigurationError:
    """The error to raise: `what must be wanted, got got; remedy`."""
    ending = f"; {remedy}" if remedy else ""
    error = ConfigurationError(" ".join(f"{what} must be {wanted}, got {got}{ending}".splitlines()))
    error.what = what
    return error


def rename(error: ConfigurationError, name: str) -> ConfigurationError:
    """The same refusal under the name that the user wrote."""
    result = type(error)(f"{name}{str(error).removeprefix(error.what or '')}")
    result.what = name
    return result


@contextlib.contextmanager
def refuse_errors(
    what: str,
    got: Callable[[Exception], str],
    wanted: str,
    remedy: str = "",
    kinds: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Iterator[None]:
    """Refuse in one line what fails inside, which `got` describes; a refusal inside passes unchanged."""
    try:
        yield
    except ConfigurationError:
        raise
    except kinds as error:
        raise refuse(what, got(error), wanted, remedy) from error


def require_given(what: str, value: T | None, remedy: str = "") -> T:
    """The value of what may be left out elsewhere, but not here."""
    if value is None:
        raise refuse(what, "nothing", "given", remedy)
    return value


def require_left_out(values: Any, names: Iterable[str], where: str, remedy: str = "drop --{flag}") -> None:
    """Refuse attributes that are set though they mean nothing `where` that is so; `{flag}` stands for the name's."""
    for name in names:
        if (value := getattr(values, name)) is not None:
            raise refuse(name, value, f"left out {where}", remedy.format(flag=name.replace("_", "-")))


def require_text(what: str, value: str, remedy: str = "") -> str:
    """Some letters: an empty word, as a variable of a shell that is not set leaves it, names nothing."""
    if not value:
        raise refuse(what, "an empty word", "given", remedy)
    return value


def require_number(what: str, value: Any, remedy: str = "") -> float:
    """One real number, Python's or an array's, as a float."""
    try:
        return float("text" if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise refuse(what, repr(value), "a number", remedy) from None


def require_positive(what: str, value: Any, remedy: str = "") -> None:
    """`value > 0` and finite; written so that NaN fails."""
    if not 0 < require_number(what, value, remedy) < math.inf:
        raise refuse(what, value, "positive and finite", remedy)


def require_in_unit_interval(what: str, value: Any, remedy: str = "") -> None:
    """`0 < value < 1`; written so that NaN fails."""
    if not 0 < require_number(what, value, remedy) < 1:
        raise refuse(what, value, "strictly between 0 and 1", remedy)


def require_delta(value: Any) -> None:
    """A delta of a guarantee: strictly between 0 and 1."""
    require_in_unit_interval("delta", value, "take one well below 1 / records, such as 1e-5")


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def require_count(what: str, value: int, remedy: str = "") -> None:
    """An integer of at least 1, Python's or NumPy's."""
    if not is_integer(value) or value < 1:
        raise refuse(what, value, "an integer of at least 1", remedy)


def require_integer(what: str, value: int, least: int, most: int, remedy: str = "") -> None:
    """An integer from `least` to `most`, Python's or NumPy's."""
    if not is_integer(value) or not least <= value <= most:
        raise refuse(what, value, f"an integer from {least} to {most:,}", remedy)


def require_seed(seed: int) -> None:
    """An integer of 32 bits: JAX takes a longer one for another, and a draw without a seed cannot be repeated."""
    if not is_integer(seed) or not 0 <= seed < 2**32:
        raise refuse("seed", seed, "an integer in [0, 2^32)")


def require_not_negative(what: str, value: Any, remedy: str = "") -> None:
    """`value >= 0` and finite; written so that NaN fails."""
    if not 0 <= require_number(what, value, remedy) < math.inf:
        raise refuse(what, value, "zero or positive, and finite", remedy)


ELSEWHERE = {  # what Opacus, Flower, TensorFlow, FedJAX and papers call an option, and what it is called here
    **dict.fromkeys(("lr", "step_size", "client_lr", "local_lr"), "learning_rate"),
    **dict.fromkeys(("clients", "n_clients", "num_parties"), "num_clients"),
    **dict.fromkeys(("sigma", "noise_std", "noise_scale"), "noise_multiplier"),
    **dict.fromkeys(("c", "max_grad_norm", "max_norm", "l2_norm_clip", "clipping_norm", "clipping"), "clip_norm"),
    **dict.fromkeys(("epochs", "local_epochs", "num_epochs", "tau"), "local_steps"),
    **dict.fromkeys(("num_rounds", "iterations", "global_rounds"), "rounds"),
    **dict.fromkeys(("fraction", "fraction_fit", "clients_per_round"), "cohort_size"),
    **dict.fromkeys(("optimizer", "client_optimizer"), "local_rule"),
    **dict.fromkeys(("eps", "target_epsilon", "epsilon_budget", "privacy_budget", "budget"), "epsilon"),
    **dict.fromkeys(("ema", "averaging", "swa", "polyak"), "average"),
    **dict.fromkeys(("ema_decay", "ema_rate", "average_rate"), "average_decay"),
    **{
        "target_delta": "delta",
        "weight_decay": "l2",
        "server_lr": "server_learning_rate",
        "server_optimizer": "server",
    },
}
RETIRED: dict[str, str] = {  # names of before, of an option, a choice or a key, and the remedy: what takes their place
    "adapt": "noise is fixed before the first round: noise_schedule lets it differ by round; accounting.filter_for "
    "is the filter for code of your own",
    "individual": "stop_at_epsilon ends a run for all; accounting.IndividualFilter is the filter of each client for "
    "code of your own",
    "stop_noise": "stop by a public test set, which is free, or fix the rounds; accounting.with_looks prices noised "
    "looks for code of your own",
    "budget": "stop_at_epsilon, as it is called now, ends a run before it would pass that epsilon; epsilon finds the "
    "noise for all its rounds",
    "budget_high": "stop_at_epsilon is one number, which ends the run for all; epsilon with epsilon_high finds noise "
    "for a budget of each client",
    "prior_event": "setup_event, as it is called now, is what each client released for how clients are drawn",
    "start_clients": "drop it: equal names or equal records say who is who, else every client pays for the dearest",
    "no_hashes": "drop it: of records and names a ledger has one digest of all",
    "completion": "fedjax-dp --install-completion takes its place",
    **dict.fromkeys(("serve", "port"), "fedjax-dp run --track shows a run that is under way in an experiment tracker"),
    **dict.fromkeys(
        ("compile_for", "price"),
        "python benchmarks/compiled.py --help says how to plan for an accelerator that is not here",
    ),
    "shuffled": "of cohorts it is retired: take cyclic or bins; of batches it is epochs",
    "cohort_last": "it is retired with cohort shuffled: take cyclic or bins",
    "refill": "it is retired: take epochs with last keep, whose last batch is smaller",
    "refilled": "it is retired: of a record that is m times in a sum count m^2 steps of sampling none",
}


def _plain(word: str) -> str:
    """A name as code spells it, of one that a flag or a file may spell otherwise."""
    return word.lstrip("-").replace("-", "_").lower()


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """The name that was probably meant, if any: one of other tools, one that begins so, else one spelt alike."""
    names = list(names)
    known = ELSEWHERE.get(_plain(word))
    same = [name for name in names if known and _plain(name) == known]
    if same:
        return same
    begins = [name for name in names if len(word) > 1 and name.startswith(word)]
    return begins[:1] or difflib.get_close_matches(word, names, n=1)


def suggestion(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """The remedy for a name that is none of `names`: `did you mean ...?`, or something else where none is near."""
    near = nearest(word, names)
    return f"did you mean {near[0]}?" if near else otherwise


def replacement(word: str) -> str:
    """The remedy for an option, a choice or a key of before; empty for any other name."""
    return RETIRED.get(_plain(word), "")


def require_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """One of `choices`; the nearest name is offered."""
    names = list(choices)
    if not isinstance(value, str) or value not in names:
        remedy = replacement(value) or suggestion(value, names) if isinstance(value, str) else ""
        listed = f"one of {len(names)} names" if remedy and len(names) > 30 else "one of " + ", ".join(names)
        raise refuse(what, repr(value), listed, remedy)


def require_installed(package: str, extra: str, use: str = "") -> None:
    """A package that only some uses need; it is looked for, not imported.

    Raises: ConfigurationError that names the extra which brings it.
    """
    result = importlib.util.find_spec(package)
    if result is None or result.origin is None:  # the latter is a folder of that name, as trackers make
        raise refuse(package, "nothing", f"installed {use}".rstrip(), f'pip install "fedjax-dp[{extra}]"')


def require_picture(what: str, path: str | os.PathLike[str]) -> str:
    """The ending of a picture's file, in a folder that can be written to."""
    return require_file(what, path, PICTURES)


def require_file(what: str, path: str | os.PathLike[str], endings: Collection[str]) -> str:
    """The ending of a file, one of these, in a folder that can be written to."""
    file = pathlib.Path(path)
    if file.suffix not in endings:
        raise refuse(what, path, "a file name that ends in " + ", ".join(endings), "rename it")
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK) or file.is_dir():
        raise refuse(what, path, "in a folder that exists and can be written to", "choose another")
    return file.suffix
