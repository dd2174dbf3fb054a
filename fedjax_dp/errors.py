"""Errors, with one form for every refusal: what, got, wanted, remedy. No JAX here, so accounting can use it."""

import contextlib
import dataclasses
import difflib
import functools
import importlib.util
import math
import numbers
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
PICTURES = (".png", ".pdf", ".svg")


class ConfigurationError(ValueError):
    """The request cannot be carried out; the message is one line that says what to change."""

    what: str | None = None  # the option with the error, if it is one


class MissingDataError(ConfigurationError):
    """A data set is missing; the message says what to get and where to put it."""


def _list_clients(clients: list[int], called: Callable[[int], str]) -> str:
    return ", ".join(map(called, clients[:10])) + (", ..." if len(clients) > 10 else "")


class DivergedError(RuntimeError):
    """A loss or an update is no longer finite; `clients` is empty if it is the loss on the test set."""

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
    """A run cannot continue because another of its processes has ended; `reason` says which."""

    def __init__(self, reason: str):
        super().__init__(
            f"the run has ended: {reason}; fedjax-dp run --resume DIR continues from the last checkpoint, with any "
            "number of processes"
        )


class StorageError(RuntimeError):
    """The machine could not store something, as with a full disk or quota; everything stored before is intact."""

    def __init__(self, where: str, reason: str, remedy: str = ""):
        super().__init__(f"{where} could not be written: {reason}" + (f"; {remedy}" if remedy else ""))


def refuse(what: str, got: Any, wanted: str, remedy: str = "") -> ConfigurationError:
    """The error to raise, with the message `what must be wanted, got got; remedy`."""
    ending = f"; {remedy}" if remedy else ""
    error = ConfigurationError(" ".join(f"{what} must be {wanted}, got {got}{ending}".splitlines()))
    error.what = what
    return error


def rename(error: ConfigurationError, name: str) -> ConfigurationError:
    """The same refusal with the name that the user wrote."""
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
    """Turn errors of the block into a one-line refusal; `got` describes them. Refusals pass unchanged."""
    try:
        yield
    except ConfigurationError:
        raise
    except kinds as error:
        raise refuse(what, got(error), wanted, remedy) from error


def require_given(what: str, value: T | None, remedy: str = "") -> T:
    """The value of something optional that is required here."""
    if value is None:
        raise refuse(what, "nothing", "given", remedy)
    return value


def require_left_out(values: Any, names: Iterable[str], where: str, remedy: str = "drop --{flag}") -> None:
    """Refuse attributes that are set but have no meaning in the case `where`; `{flag}` stands for the name's flag."""
    for name in names:
        if (value := getattr(values, name)) is not None:
            raise refuse(name, value, f"left out {where}", remedy.format(flag=name.replace("_", "-")))


def require_text(what: str, value: str) -> str:
    """A nonempty string; an unset shell variable leaves an empty one."""
    if not value:
        raise refuse(what, "an empty word", "given")
    return value


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a number has to be: called with the name of a value and the value, it refuses anything else.

    `hold` is written so that NaN fails.
    """

    words: str
    hold: Callable[[Any], bool]
    whole: bool = False  # an integer, Python's or NumPy's

    def __call__(self, what: str, value: Any, remedy: str = "") -> None:
        number = value if self.whole else require_number(what, value, remedy)
        if (self.whole and not is_integer(value)) or not self.hold(number):
            raise refuse(what, value, self.words, remedy)


require_positive = Limits("positive and finite", lambda value: 0 < value < math.inf)
require_not_negative = Limits("zero or positive, and finite", lambda value: 0 <= value < math.inf)
require_in_unit_interval = Limits("strictly between 0 and 1", lambda value: 0 < value < 1)
require_decay = Limits("in [0, 1)", lambda value: 0 <= value < 1)
require_count = Limits("an integer of at least 1", lambda value: value >= 1, whole=True)
_32_bits = Limits("an integer in [0, 2^32)", lambda value: 0 <= value < 2**32, whole=True)  # JAX truncates a longer one
require_seed = functools.partial(_32_bits, "seed")


def require_number(what: str, value: Any, remedy: str = "") -> float:
    """One real number, Python's or an array's, as a float."""
    try:
        return float("text" if isinstance(value, str) else value)
    except (TypeError, ValueError):
        raise refuse(what, repr(value), "a number", remedy) from None


def require_delta(value: Any) -> None:
    """The delta of a guarantee: strictly between 0 and 1."""
    require_in_unit_interval("delta", value, "take one well below 1 / records, such as 1e-5")
    if value < sys.float_info.min:
        raise refuse("delta", value, f"at least {sys.float_info.min:.3g}, as smaller numbers have fewer digits")


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integers(least: int, most: int) -> Limits:
    """The integers from `least` to `most`, Python's or NumPy's."""
    return Limits(f"an integer from {least} to {most:,}", lambda number: least <= number <= most, whole=True)


def require_integer(what: str, value: int, least: int, most: int, remedy: str = "") -> None:
    """An integer from `least` to `most`, Python's or NumPy's."""
    integers(least, most)(what, value, remedy)


# From names in Opacus, Flower, TensorFlow, FedJAX, Hugging Face and papers to ours; several, where commands differ.
ELSEWHERE: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("lr", "step_size", "client_lr", "local_lr"), "learning_rate"),
    **dict.fromkeys(("clients", "n_clients", "num_parties", "num_users", "users"), "num_clients"),
    **dict.fromkeys(("num_supernodes", "num_partitions"), "num_clients"),
    **dict.fromkeys(("sigma", "noise_std", "noise_scale"), "noise_multiplier"),
    **dict.fromkeys(("c", "max_grad_norm", "max_norm", "l2_norm_clip", "clipping_norm", "clipping"), "clip_norm"),
    **dict.fromkeys(("epochs", "local_epochs", "num_epochs", "tau"), "local_steps"),
    **dict.fromkeys(("num_rounds", "iterations", "global_rounds"), "rounds"),
    **dict.fromkeys(("fraction", "fraction_fit", "fraction_train", "clients_per_round"), "cohort_size"),
    **dict.fromkeys(("num_sampled_clients", "min_fit_clients", "min_train_nodes", "users_per_round"), "cohort_size"),
    **dict.fromkeys(("strategy", "aggregator"), "algorithm"),
    **dict.fromkeys(("privacyengine", "make_private", "make_private_with_epsilon"), "dp_fedavg_record"),
    **{f"differentialprivacy{side}sidefixedclipping": "dp_fedavg" for side in ("server", "client")},
    **dict.fromkeys(("sample_rate", "sampling_rate", "sampling_probability"), ("rate", "poisson_rate")),
    "poisson_sampling": "batches",
    **dict.fromkeys(("label", "target_column"), "label_column"),
    **dict.fromkeys(("client", "client_id"), "client_column"),
    **dict.fromkeys(("user", "user_id"), "user_column"),
    **dict.fromkeys(("text_column", "features"), "feature_columns"),
    **dict.fromkeys(("tokenizer", "vocab"), "vocabulary"),
    **dict.fromkeys(("max_len", "max_length", "max_seq_length", "sequence_length"), "length"),
    **dict.fromkeys(("prv", "prvaccountant"), "pld"),
    **dict.fromkeys(("moments", "moments_accountant", "rdpaccountant"), "rdp"),
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


def _plain(word: str) -> str:
    """A name of a flag or a file in the spelling of code."""
    return word.lstrip("-").replace("-", "_").lower()


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """The name that was probably meant, if any: one of other tools, the shortest with this prefix, or a similar one."""
    names = list(names)
    known = ELSEWHERE.get(_plain(word), ())
    ours = (known,) if isinstance(known, str) else known
    same = [name for one in ours for name in names if _plain(name) == one]
    if same:
        return same[:1]
    begins = sorted((name for name in names if len(word) > 1 and name.startswith(word)), key=len)
    return begins[:1] or difflib.get_close_matches(word, names, n=1)


def suggestion(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """The remedy for a name that is none of `names`: `did you mean ...?`, or `otherwise` if none is similar."""
    near = nearest(word, names)
    return f"did you mean {near[0]}?" if near else otherwise


def require_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """One of `choices`; the refusal suggests the most similar name."""
    names = list(choices)
    if not isinstance(value, str) or value not in names:
        remedy = suggestion(value, names) if isinstance(value, str) else ""
        listed = f"one of {len(names)} names" if remedy and len(names) > 30 else "one of " + ", ".join(names)
        raise refuse(what, repr(value), listed, remedy)


def one_of(*choices: str) -> Callable[..., None]:
    """The check that a value is one of `choices`."""
    return functools.partial(require_choice, choices=choices)


def require_installed(package: str, extra: str, use: str = "") -> None:
    """An optional package; it is located, not imported.

    Raises: ConfigurationError that names the extra which installs it.
    """
    result = importlib.util.find_spec(package)
    if result is None or result.origin is None:  # the latter is a folder of that name, as trackers make
        raise refuse(package, "nothing", f"installed {use}".rstrip(), f'pip install "fedjax-dp[{extra}]"')


def require_picture(what: str, path: str | os.PathLike[str]) -> str:
    """The ending of a picture's file name, which must be in a writable folder."""
    return require_file(what, path, PICTURES)


def require_file(what: str, path: str | os.PathLike[str], endings: Collection[str]) -> str:
    """The ending of a file name, one of `endings`; the file must be in a writable folder."""
    file = pathlib.Path(path)
    if file.suffix not in endings:
        raise refuse(what, path, "a file name that ends in " + ", ".join(endings), "rename it")
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK) or file.is_dir():
        raise refuse(what, path, "in a folder that exists and can be written to", "choose another")
    return file.suffix
