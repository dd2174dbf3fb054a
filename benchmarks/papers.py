"""Every table and figure of the papers at one scale, and how long each takes.

    python benchmarks/papers.py                        # what is missing under results/papers, at scale small
    python benchmarks/papers.py dpnfl/table2 --scale full --panels 'syn*'
    python benchmarks/papers.py --redraw                # the figures anew from the tables; nothing is run

Each recipe runs in a process of its own. Tables and figures go to results/papers/NAME; results/papers/index.json holds
seconds, peak memory and how many numbers were reproduced, results/papers/README.md the same to look at.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import fedjax_dp as fdp
from fedjax_dp.tools.papers.reproductions import figure
from fedjax_dp.tools.papers.reproductions.cells import CellKey
from fedjax_dp.tools.papers.reproductions.recipe import READINGS, read_recipe
from fedjax_dp.tools.papers.reproductions.reproduction import Reproduction
from fedjax_dp.tools.papers.reproductions.rows import ReadingResult, ResultRow

RESULTS = pathlib.Path(__file__).parent / "results" / "papers"
KEPT = ("table.md", "table.json", "figure.png")


def measured(name, scale, panels, work):
    """Run one recipe; what it found, seconds, and peak memory of its process."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "fedjax_dp", "reproduce", name, "--scale", scale, "--panels", panels]
    process = subprocess.Popen([*command, "--out", work, "--json"], stdout=subprocess.PIPE)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        print(f"{name}: left out, exit code {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
        return None
    answer = json.loads(out)
    verdicts = collections.Counter(row["verdicts"][reading] for row in answer["rows"] for reading in row["verdicts"])
    claims = collections.Counter(claim["verdict"] == "holds" for claim in answer["claims"])
    return {
        "scale": scale,
        "panels": panels,
        "seeds": len(answer["seeds"]),
        "seconds": round(time.perf_counter() - began, 1),
        "resumed_seconds": None,
        "peak_memory_mb": round(usage.ru_maxrss / 1024),
        "runs": answer["runs"],
        "seconds_of_runs": answer["seconds_of_runs"],
        "numbers": len(answer["rows"]),
        "verdicts": {verdict: count for verdict, count in verdicts.items() if verdict},
        "claims": {"hold": claims[True], "do not": claims[False]},
        "date": answer["date"],
        "versions": answer["versions"],
        "device": answer["device"],
    }


def redraw(folder):
    """The figure anew from the table; not that of features, of which no table holds the points."""
    table = json.loads((folder / "table.json").read_text())
    recipe = read_recipe(table["recipe"])
    if recipe.figure == "features":
        return
    rows = []
    for row in table["rows"]:
        readings = {}
        for reading in READINGS:
            fields = {name: value for name, value in row[reading].items() if name != "private"}
            readings[reading] = ReadingResult(**fields | {"curve": tuple(map(tuple, fields["curve"]))})
        place = CellKey(row["panel"], row["line"], row["x"])
        bare = ResultRow(place, row["metric"], row["published"], row["published_std"], readings, row["verdicts"])
        rows.append(dataclasses.replace(bare, why=row["verdict"].removeprefix(bare.verdict).removeprefix(": ")))
    scale = recipe.scales[table["scale"]]
    done = Reproduction(recipe, scale, tuple(table["seeds"]), tuple(rows), (), tuple(table["notes"]), folder)
    figure.draw(done, folder / "figure.png")


def folder_of(name, scale, panels):
    """Where results go: one folder per recipe, with what is special about it in its name."""
    part = "" if panels == "*" else "-" + "".join(c for c in panels if c.isalnum() or c == "-")
    return name.replace("/", "-") + ("" if scale == "small" else f"-{scale}") + part


def overview(index):
    """Everything that was run, as a page of links."""
    lines = [
        "# The papers, as run",
        "",
        "Verdicts count published numbers, claims what the papers say about them; each in both readings.",
        "",
        "| recipe | scale | seeds | runs | reproduced | lower | higher | claims that hold | MB | date |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for folder, found in index.items():
        verdicts, claims = found["verdicts"], found["claims"]
        part = "" if found["panels"] == "*" else f", {found['panels']}"
        counts = [verdicts.get(name, 0) for name in ("reproduced", "lower", "higher")]
        cells = [
            f"[{folder}]({folder}/table.md)",
            found["scale"] + part,
            found["seeds"],
            found["runs"],
            *(counts if any(counts) else ["-"] * 3),
            f"{claims['hold']} of {sum(claims.values())}",
            found["peak_memory_mb"],
            found["date"],
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="recipes; those without results unless given")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--panels", default="*")
    parser.add_argument("--work", default="reproduced", help="folder of the runs, which go on where they stopped")
    parser.add_argument("--redraw", action="store_true", help="figures of all that was run, from its tables")
    options = parser.parse_args()
    if options.redraw:
        for table in sorted(RESULTS.glob("*/table.json")):
            redraw(table.parent)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    index = RESULTS / "index.json"
    for name in options.names or fdp.papers.recipes():
        entries = json.loads(index.read_text()) if index.is_file() else {}
        folder = folder_of(name, options.scale, options.panels)
        if not options.names and folder in entries:
            continue
        print(f"{name} at scale {options.scale}", file=sys.stderr)
        work = pathlib.Path(options.work) / folder
        resumed = (work / "runs").exists()
        found = measured(name, options.scale, options.panels, work)
        if found is None:
            continue
        if resumed:  # then seconds and memory are those of a part; those of the whole were told before
            whole = entries.get(folder, {"seconds": None, "peak_memory_mb": 0})
            memory = max(found["peak_memory_mb"], whole["peak_memory_mb"])
            found |= {"seconds": whole["seconds"], "resumed_seconds": found["seconds"], "peak_memory_mb": memory}
        (RESULTS / folder).mkdir(exist_ok=True)
        for file in KEPT:
            shutil.copy(work / file, RESULTS / folder / file)
        entries = dict(sorted((entries | {folder: found}).items()))
        index.write_text(json.dumps(entries, indent=1) + "\n")
        (RESULTS / "README.md").write_text(overview(entries))


if __name__ == "__main__":
    main()
