"""Where the values come from that training begins with: whose word, or the ledger that came with them.

A ledger is lines of JSON, one for each phase of training, the first first; each names the one before it, or none. That
of a run's folder has a line for each round after them (`accounting.ledger`), which stays there. A phase is a run, with
its data and its Guarantee, or values from elsewhere, with what is known of them.
Lines are never written anew: a run that begins with an export has its lines before its own.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.client_maps import ClientPairs
from fedjax_dp.accounting.composed_phases import FILE, Phase, names_of
from fedjax_dp.accounting.ledger import VERSION, as_json, phases_in, read_line
from fedjax_dp.data.store import FederatedData

LEDGER = "ledger.jsonl"  # the file beside the arrays of a folder, and the run's own
KEY, ARRAY = "ledger", "__ledger__"  # its name in the metadata of safetensors, and among the arrays of an npz
LARGEST = 64 * 2**20  # bytes of a ledger that is read
RUN = "run"  # a kind of phases; the other is FILE
FREE = ("phase", "round", "parameters")  # may differ between exports of one run: they are not in its phase's name
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
        "mapped": (dict, type(None)),
        "beside": (list, type(None)),
        "colluders": (int, type(None)),
        "in_sweep": (bool, type(None)),
    },
    FILE: {
        "name": str,
        "sha256": str,
        "trained_on": (str, type(None)),
        "private": (bool, type(None)),
        "stated": (list, type(None)),
    },
}


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where values come from that training begins with.

    name      of the file, the run, or whatever they were given as;
    sha256    of its contents;
    trained_on  what it was trained on, in words, as its user says; None: it is not said;
    public    whether it holds nothing of these clients, as its user says;
    ledger    that came with it; empty: none did;
    clients   which of them are which of the run that wrote it, as its user says, see `accounting.client_maps`;
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
    clients: ClientPairs | None = dataclasses.field(default=None, repr=False)

    def __str__(self) -> str:
        text = f"{self.name} (sha256 {self.sha256[:12]})"
        return text if self.trained_on is None else f"{text}, trained on {self.trained_on}"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Of the training before, the newest last; values without a ledger are one of which only words are known."""
        return phases_of(self.lines, self.name)

    @property
    def lines(self) -> str:
        """The ledger of these values, for what is trained from them to carry."""
        private = None if self.public is None else not self.public
        known: dict[str, Any] = {"kind": FILE, "name": self.name, "sha256": self.sha256, "trained_on": self.trained_on}
        known |= {"private": private} | ({} if self.stated is None else {"stated": list(self.stated)})
        return self.ledger or with_phase("", known)


def who_is_in(data: FederatedData, checksum: str | None, public: bool) -> dict[str, Any]:
    """What a run's phase has of its clients and their records, by which another one's are known to be the same.

    checksum  of the records;
    public    whether it is public which clients take part: else nothing is kept of their names.
    """
    sizes = np.asarray(data.sizes, "<i8")
    names = None if data.names is None or not public else data.names.listed
    return {
        "clients": {
            "count": data.num_clients,
            "sizes": hashlib.sha256(sizes.tobytes()).hexdigest(),
            "names": names_of(names),
        },
        "records": {"count": int(sizes.sum()), "checksum": checksum},
    }


def with_phase(ledger: str, facts: Mapping[str, Any]) -> str:
    """The ledger with one more phase. Its name is the sha256 of its facts and of the phases that it begins with: its
    parent, and those beside it where there are several."""
    before = phases_of(ledger, "ledger")
    pairs = itertools.zip_longest(before, before[1:])
    *beside, parent = [one["phase"] for one, after in pairs if after is None or after["parent"] is None] or [None]
    line = {"ledger": VERSION, "parent": parent, **({"beside": beside} if beside else {}), **facts}
    return f"{ledger}{as_json({'phase': _name(line), **line})}\n"


def phases_of(ledger: str, where: str) -> tuple[Phase, ...]:
    """The phases of a ledger; lines of rounds after them are passed over.

    Raises: ConfigurationError in one line for what is none, was edited, is of a later version or too large.
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
            _require_fields(line, [phase["phase"] for phase in found])
        except errors.ConfigurationError:
            raise
        except (ValueError, RecursionError) as error:
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


def require_own(ledger: str, values: Mapping[str, Any], where: str, exported: bool) -> None:
    """Refuse arrays of which a ledger that came with them is not; what was exported names them."""
    if not ledger.strip():
        raise errors.refuse(f"ledger of {where}", "an empty one", "as a run wrote it", "export it again")
    digest = phases_of(ledger, where)[-1].get("parameters")
    if (exported or digest is not None) and digest != values_digest(values):
        remedy = "export it again, or write the arrays without the ledger and say what they are with start_data"
        raise errors.refuse(f"ledger of {where}", "one of other parameters", "of those beside it", remedy)


def _require_fields(line: dict[str, Any], before: list[str]) -> None:
    kind = line.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError(f"kind {str(kind)[:40]!r}")
    for name, kinds in FIELDS[kind].items():
        if type(line.get(name)) not in (kinds if isinstance(kinds, tuple) else (kinds,)):  # a truth value is no number
            raise ValueError(f"{name} {str(line.get(name))[:40]!r}")
    if line.get("phase") != _name(line) or line.get("parent") not in (None, *before[-1:]):
        raise ValueError("other facts than were written")
    if not all(name in before for named in ("beside", "continues") for name in line.get(named) or ()):
        raise ValueError("a phase that it names left out")


def _name(line: Mapping[str, Any]) -> str:
    """What a phase is known by."""
    return hashlib.sha256(as_json({name: line[name] for name in sorted(line) if name not in FREE}).encode()).hexdigest()
