"""A table from results/h200: rounds on one NVIDIA H200, in the project and elsewhere.

python benchmarks/h200.py    # writes results/h200/peers.md
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import run as peers

FOLDER = pathlib.Path(__file__).parent / "results" / "h200"


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def in_turns():
    """Rounds before (A) and after (B) they were computed in pieces: name, cohort, points of a sweep, milliseconds."""
    for line in (FOLDER / "pieces.jsonl").read_text().splitlines():
        row = json.loads(line)
        name, at = row["name"].split(":")
        cohort, _, points = at.partition("x")
        yield name, int(cohort), int(points or 0), row["A"]["ms"], row["B"]["ms"]


def table():
    """Markdown: a column for each round that another system ran there too, and how much faster ours became since."""
    shown = {}
    for row in read("rounds_in_turns"):
        place = row["name"], row["cohort"]
        others = {one["peer"]: one["ms"] for one in read("peers") if (one["name"], one["cohort"]) == place}
        if others:
            ms = {"ours": row["ours_ms"], "plain_jax": row["plain_ms"], **others}
            rows = {name: {"ms": each, "times_ours": each / row["ours_ms"]} for name, each in ms.items()}
            shown[f"{row['name']}, {row['cohort']}"] = {"rows": rows, "reasons": {}, "disturbed": []}
    faster = [before / after for *_, before, after in in_turns()]
    since = f"A change since made our rounds {min(faster):.2f} to {max(faster):.2f} times as fast, measured in turns."
    return f"{peers.table(shown)}\n\n{since}"


if __name__ == "__main__":
    (FOLDER / "peers.md").write_text(f"{table()}\n")
    print(table())
