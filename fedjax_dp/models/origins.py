"""Origins of initial values: a user's declaration, or a ledger.

A ledger has lines of JSON, one for each phase of training, in order. In a run's folder, one line for each round follows
(`accounting.ledger`), which stays there. A phase is a run, with its data and its Guarantee, or values from another
source, with what is known of them. The last line of a ledger of parameters has their checksum (`parameters`).
Lines are never changed: a run that starts from an export has the export's lines before its own.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.composed_phases import FILE, Phase, digest_of_names
from fedjax_dp.accounting.ledger import VERSION, as_json, phases_in, read_line
from fedjax_dp.data.store import FederatedData

LEDGER = "ledger.jsonl"  # the file beside the arrays of a folder, and the run's own
KEY, ARRAY = "ledger", "__ledger__"  # its name in the metadata of safetensors, and among the arrays of an npz
LARGEST = 64 * 2**20  # bytes of a ledger that is read
RUN = "run"  # a kind of phases; the other is FILE
FIELDS: dict[str, dict[str, Any]] = {
    RUN: {
        "algorithm": str,
        "dataset": str,
        "rounds": int,
        "epsilon": (float, int, type(None)),
        "delta": (float, int, type(None)),
        "clients": dict,
        "records": dict,
        "spent": (dict, type(None)),
        "continues": (list, type(None)),
        "colluders": (int, type(None)),
        "in_sweep": (bool, type(None)),
        "run": (str, type(None)),  # which run.json names too
        "caveat": (str, type(None)),
    },
    FILE: {
        "name": str,
        "sha256": str,
        "trained_on": (str, type(None)),
        "private": (bool, type(None)),
        "stated": (list, type(None)),
        "foreign": (bool, type(None)),
    },
}


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of initial values.

    name      of the file, the run, or whatever they were given as;
    sha256    of its contents;
    trained_on  what it was trained on, in words, as its user says; None: it is not said;
    public    whether it holds nothing of these clients, as its user says;
    ledger    that came with it; empty: none did;
    stated    epsilon and delta of the training that made it, as its user says: of what clients hide in this one too;
    foreign   whether it is a file that no run of ours wrote.
    """

    name: str
    sha256: str
    trained_on: str | None = None
    public: bool | None = None
    ledger: str = dataclasses.field(default="", repr=False)
    stated: tuple[float, float] | None = None
    foreign: bool = False

    def __str__(self) -> str:
        text = f"{self.name} (sha256 {self.sha256[:12]})"
        return text if self.trained_on is None else f"{text}, trained on {self.trained_on}"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of earlier training, in order; without a ledger a single one, with the user's declaration."""
        return phases_of(self.lines, self.name)

    @property
    def lines(self) -> str:
        """The ledger of these values, which is passed on to models that are trained from them."""
        private = None if self.public is None else not self.public
        known: dict[str, Any] = {"kind": FILE, "name": self.name, "sha256": self.sha256, "trained_on": self.trained_on}
        known |= {"private": private} | ({} if self.stated is None else {"stated": list(self.stated)})
        known |= {"foreign": True} if self.foreign else {}
        return self.ledger or with_phase("", known)


def draw_seed(seed: int, model: Any) -> int:
    """Seed of cohorts, batches and noise: `seed`, or where training begins with given values, derived from both.

    Identical noise in two phases would cancel in the difference of their releases, whether or not the Guarantee of the
    second counts the first.
    """
    origins = getattr(model, "origins", ())
    if not origins:
        return seed
    prior = json.dumps([seed, *(origin.sha256 for origin in origins)])
    return int.from_bytes(hashlib.sha256(prior.encode()).digest()[:4])


def longest_lines(origins: Iterable[Origin]) -> list[str]:
    """The ledgers of these values, without those that are a prefix of another one."""
    ledgers = list(dict.fromkeys(origin.lines for origin in origins))
    return [one for one in ledgers if not any(other != one and other.startswith(one) for other in ledgers)]


def clients_in(data: FederatedData, checksum: str | None, public: bool) -> dict[str, Any]:
    """The entries of a run's phase by which the clients and records of another phase are compared.

    checksum  of the records and their assignment to clients;
    public    whether participation is public: if not, nothing about names is stored.
    """
    names = None if data.names is None or not public else data.names.listed
    return {
        "clients": {"count": data.num_clients, "names": digest_of_names(names)},
        "records": {"count": int(np.asarray(data.sizes).sum()), "checksum": checksum},
    }


def with_phase(ledger: str, facts: Mapping[str, Any]) -> str:
    """The ledger with one more phase."""
    return f"{ledger}{as_json({'ledger': VERSION, **facts})}\n"


def phases_of(ledger: str, where: str) -> tuple[Phase, ...]:
    """The phases of a ledger, without its lines of rounds.

    Raises: ConfigurationError in one line if it is no ledger, of another version, or too large.
    """
    ledger = phases_in(ledger)
    if len(ledger) > LARGEST:
        raise errors.refuse(f"ledger of {where}", f"{len(ledger):,} letters", f"at most {LARGEST:,}")
    found: list[dict[str, Any]] = []
    for number, text in enumerate(ledger.splitlines(), 1):
        try:
            line = read_line(text)
            if line["ledger"] != VERSION:
                got, wanted = f"version {str(line['ledger'])[:20]}", f"version {VERSION}, which is known here"
                raise errors.refuse(f"ledger of {where}", got, wanted, "export it again")
            _require_fields(line, len(found))
        except errors.ConfigurationError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            got = f"line {number} with {' '.join(str(error).split())[:80]}"
            raise errors.refuse(f"ledger of {where}", got, "as a run wrote it", "export it again") from None
        found.append(line)
    return tuple(found)


def values_digest(values: Mapping[str, Any]) -> str:
    """sha256 of arrays by name, the same in every format."""
    whole = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        whole.update(f"{name} {array.shape}".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def with_parameters(ledger: str, values: Mapping[str, Any], where: str, exported: bool) -> str:
    """The ledger of these arrays, with their checksum in the last line.

    exported  whether the ledger has the checksum already, as in an export; that of a run's folder has not.
    Raises:   ConfigurationError if the ledger belongs to other arrays.
    """
    if not ledger.strip():
        raise errors.refuse(f"ledger of {where}", "an empty one", "as a run wrote it", "export it again")
    phase, digest = dict(phases_of(ledger, where)[-1]), values_digest(values)
    if phase.get("parameters", None if exported else digest) != digest:
        remedy = "export it again, or write the arrays without the ledger and say what they are with start_data"
        raise errors.refuse(f"ledger of {where}", "one of other parameters", "of the parameters in its folder", remedy)
    phase.pop("run", None)  # the name is the folder's, not that of the arrays
    return ledger if exported else with_phase(before_last(ledger), phase | {"parameters": digest})


def before_last(ledger: str) -> str:
    """The lines of all phases before the last."""
    return "".join(ledger.splitlines(keepends=True)[:-1])


def _require_fields(line: dict[str, Any], before: int) -> None:
    """Refuse a line that is no phase; `before`: number of lines before it."""
    kind = line.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError(f"kind {str(kind)[:40]!r}")
    for name, kinds in FIELDS[kind].items():
        if type(line.get(name)) not in (kinds if isinstance(kinds, tuple) else (kinds,)):  # a truth value is no number
            raise ValueError(f"{name} {str(line.get(name))[:40]!r}")
    if kind == RUN and (type(count := line["clients"].get("count")) is not int or count < 1):
        raise ValueError(f"{str(count)[:40]} clients")
    if not all(type(back) is int and 0 < back <= before for back in line.get("continues") or ()):
        raise ValueError("a phase that it goes on from left out")
