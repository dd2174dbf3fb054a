"""The pages that a build writes: API reference, catalogue, results, gallery."""

import importlib
import inspect
import json
import pathlib
import re
import statistics
from typing import Any

import numpy as np
from docstrings import plain, restructured
from sphinx.application import Sphinx
from sphinx.config import Config

import fedjax_dp as fdp
from fedjax_dp.options import REQUIRED, Option
from fedjax_dp.parts.facts import parts_of
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.tools.cli import catalogue_tables
from fedjax_dp.tools.deployments import system_rows
from fedjax_dp.tools.papers import citations

HERE = pathlib.Path(__file__).parent.parent
ROOT = HERE.parent
RESULTS = ROOT / "benchmarks" / "results"
SLOTS = {  # how a slot's row is named in the catalogue, where its own name says too little
    "bound": "clipping",
    "local rule": "local rule",
    "local": "local step",
    "estimator": "aggregate",
}
ORDER = (  # of slots in a round
    "cohort",
    "batches",
    "bound",
    "noise source",
    "privatizer",
    "correction",
    "local rule",
    "local",
    "client models",
    "upload",
    "transport",
    "estimator",
    "server",
)


def namespaces() -> dict[str, Any]:
    """The package and the namespaces that it lists, by full name."""
    found = {"fedjax_dp": fdp}
    for name in sorted(fdp.__all__):
        if (pathlib.Path(fdp.__file__).parent / name).is_dir():
            found[f"fedjax_dp.{name}"] = importlib.import_module(f"fedjax_dp.{name}")
    return found


def public_names() -> dict[str, Any]:
    """Every public name but the namespaces themselves, by full name."""
    spaces = namespaces()
    return {
        f"{space}.{name}": getattr(module, name)
        for space, module in spaces.items()
        for name in module.__all__
        if f"{space}.{name}" not in spaces
    }


def _write(name: str, text: str) -> None:
    """Write a page, unless it says the same already: then the build need not read it again."""
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def write_api() -> None:
    """A page for each namespace with every public name of it."""
    names = public_names()
    homes: dict[int, str] = {}  # where a thing is told
    for space, module in namespaces().items():
        own = {name: thing for name, thing in names.items() if name.rpartition(".")[0] == space}
        about = inspect.getdoc(module) or ""
        lines = [f"{space}", "=" * len(space), "", *_escaped(about), ""]
        for name, thing in sorted(own.items(), key=lambda one: one[0].lower()):
            home = homes.setdefault(id(thing), name)
            if home != name:
                lines += [f".. py:data:: {name}", "", f"   The same as :py:obj:`{home}`.", ""]
                continue
            called = plain(thing) if isinstance(thing, fdp.algorithms.Entry) else ""  # its source says less
            lines += [f".. {_directive(thing)}:: {name}{called}", *_members(thing), ""]
        _write(f"api/{space}.rst", "\n".join(lines) + "\n")
    listed = "\n".join(namespaces())
    _write(
        "api/index.md",
        "# API reference\n\nEvery public name, by namespace. `fedjax_dp.accounting` never imports JAX.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
    )


def _escaped(text: str) -> list[str]:
    return restructured(text.splitlines())


def _directive(thing: Any) -> str:
    if isinstance(thing, type):
        return "autoclass"
    return "autofunction" if callable(thing) and hasattr(thing, "__name__") else "autodata"


def _members(thing: Any) -> list[str]:
    return ["   :members:"] if isinstance(thing, type) else ["   :no-value:"] if not callable(thing) else []


def write_catalogue() -> None:
    """Each entry: equations, source, options, view, bytes, all read off the entry."""
    table = {row.entry: row for row in catalogue_tables.entry_rows()}
    shown = catalogue_tables.markdown(catalogue_tables.HEADER, table.values())
    pages = [_with_tables((HERE / "catalogue.in.md").read_text(), {"entries": shown}), ""]
    for name, entry in fdp.CATALOGUE.items():
        row, algorithm = table[name], catalogue_tables.algorithm_of(name)
        hides = "No privacy." if row.unit == "none" else f"Hides a {row.unit} from view `{row.view}`."
        about = inspect.getdoc(entry) or ""
        pages += [f"## {name}", "", about.splitlines()[0], ""]
        pages += [f"*Source: {entry.source}.* {hides} {row.down:,} bytes down, {row.up:,} up per client and round.", ""]
        pages += ["| part | equation |", "|---|---|"]
        pages += [f"| {SLOTS.get(slot, slot)} | ${_in_table(equation)}$ |" for slot, equation in _equations(algorithm)]
        own = [option for key, option in entry.options.items() if key not in fdp.algorithms.RUN_OPTIONS]
        if own:
            pages += ["", "| option | default | what it is |", "|---|---|---|", *map(_option, own)]
        changed = [
            f"`{key}` {_value(option.default)}"
            for key, option in entry.options.items()
            if key in fdp.algorithms.RUN_OPTIONS and option.default != fdp.algorithms.RUN_OPTIONS[key].default
        ]
        pages += ["", f"Common options with other defaults here: {', '.join(changed)}.", ""] if changed else [""]
    pages += ["## Local rules", "", "| `local_rule` | direction of a step | numbers |", "|---|---|---|"]
    pages += [_rule(name, rule) for name, rule in fdp.parts.LOCAL_RULES.items()]
    pages += ["", "[How to choose](guides/local_rules.md).", ""]
    words = "Those that mean something beside one choice alone are numbers of its part, from Python."
    pages += ["## Options that every entry takes", "", words, "", "| option | default | what it is |", "|---|---|---|"]
    pages += [*map(_option, fdp.algorithms.RUN_OPTIONS.values()), ""]
    pages += ["## Citations", "", citations.markdown()]
    _write("catalogue.md", "\n".join(pages) + "\n")


def _equations(algorithm: Algorithm) -> list[tuple[str, str]]:
    """What its parts do, as LaTeX by slot, in the order of a round; what a part does not say in its `equation` is left
    out, and so is a term of strength 0."""
    parts = [*parts_of(algorithm), ("server", algorithm.server)]
    stated = [(slot, part.equation) for slot, part in parts if hasattr(part, "equation") and _acts(part)]
    return sorted(stated, key=lambda one: ORDER.index(one[0]))


def _acts(part: Any) -> bool:
    return not np.all(np.asarray(getattr(part, "strength", 1.0)) == 0)


def _option(option: Option) -> str:
    text = re.sub(r"(--[\w-]+|[\w-]*_[\w_-]+)", r"`\1`", option.about.text.replace("|", "\\|"))
    names = f" One of {', '.join(f'`{name}`' for name in option.choices)}." if option.choices else ""
    default = option.about.default or _value(option.default)
    return f"| `{option.name}` | {default} | {text}{'.' if names and text else ''}{names} |"


def _rule(name: str, rule: fdp.parts.LocalRule) -> str:
    numbers = ", ".join(f"`local_{key}` {value:g}" for key, value in rule.hyperparameters.items())
    return f"| `{name}` | ${_in_table(rule.equation)}$ | {numbers} |"


def _value(default: Any) -> str:
    return "required" if default is REQUIRED else "none" if default is None else f"`{default}`"


def _in_table(equation: str) -> str:
    return equation.replace("|", r"\vert ").replace(r"\\vert", r"\Vert")


def measured() -> dict[str, str]:
    """The numbers that pages tell, as `{{ name }}`, from the files in which they were measured."""
    results = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    sweep, secure, million = results["sweep"], results["secure_aggregation"]["seconds"], results["million"]
    audits = {row["trials"]: row for row in results["audit"]["rows"] if row["epsilon"] == 4}
    two = {row["order"]: row["efficiency"] for row in results["weak_scaling"]["rows"] if row["devices"] == 2}
    best = json.loads((RESULTS / "papers" / "best-mnist-0.3" / "table.json").read_text())
    lines = {row["line"]: row for row in best["rows"]}
    theirs, ours = lines["addpnfl"], lines["best"]
    found = {
        "sweep_s": f"{sweep['sweep_s']:.0f}",
        "sweep_processes": f"{sweep['ratio_processes']:.0f}",
        "sweep_one_by_one": f"{sweep['ratio_one_by_one']:.2f}",
        "sweep_overhead": f"{sweep['overhead']:.1%}",
        "secure_20": f"{secure['secure_20_neighbours']:.1f}",
        "secure_all": f"{secure['secure_complete']:.1f}",
        "pld_few": f"{results['accounting']['ratio_pld']['1e4 steps']:.0f}",
        "pld_many": f"{results['accounting']['ratio_pld']['1e6 steps']:.1f}",
        "audit_s": f"{statistics.median(audits[10_000]['seconds']):.0f}",
        "audit_few": f"{audits[10_000]['ratio_median']:.2f}",
        "audit_many": f"{audits[100_000]['ratio_median']:.2f}",
        "weak_any": f"{two['any_order']:.0%}",
        "weak_apart": f"{two['apart']:.0%}",
        "million_start": f"{million['disk']['first_round_s']:.1f}",
        "million_time": f"{million['time_over_memory']:.2f}",
        "million_gb": f"{million['disk']['peak_mb'] / 1000:.1f}",
        "letters": f"{100 * results['adaptation']['public']['test_accuracy']:.1f}",
        "mean_clients": str(results["mean_estimation"]["setting"]["clients"]),
        "mean_records": str(results["mean_estimation"]["setting"]["records"]),
        "transformer_cost": f"{results['transformer']['clipping_cost']:.2f}",
        "best_published": f"{theirs['published']:g}",
        "best_literal": f"{theirs['literal']['mean']:.1f}",
        "best_literal_epsilon": f"{theirs['literal']['epsilon']:.3f}",
        "best_correct": f"{theirs['correct']['mean']:.1f}",
        "best_ours": f"{ours['correct']['mean']:.1f}",
    }
    for similarity in (0, 10):
        found[f"cnn_{similarity}"] = f"{100 * results[f'mnist_cnn_{similarity}']['test_accuracy']:.1f}"
    for workload in ("w1", "w2", "w3", "w3dp"):
        latency = results[f"round_latency_{workload}"]
        found[f"floor_{workload}"] = f"{latency['over_floor']:.1f}"
        if "clipping_cost" in latency:
            found[f"clip_{workload}"] = f"{latency['clipping_cost']:.2f}"
    return found


def tables() -> dict[str, str]:
    """The tables that pages show in place of `<name>`, from the same files."""
    found = {}
    for name in ("peers.md", "h200/peers.md", "compiled.md", "convolutions.md", "correlated_noise.md", "plan.md"):
        lines = (RESULTS / name).read_text().splitlines()
        found[name] = "\n".join(line for line in lines if not line.startswith(("# ", "![")))
    rows = ["| paper | claim | setting | verdict | claimed | provable |", "|---|---|---|---|---|---|"]
    for row in json.loads((RESULTS / "claims.json").read_text())["claims"]:
        provable = "infinite" if row["provable_is_infinite"] else _number(row["provable_epsilon"])
        cells = (row["paper"], row["claim"], row["setting"], row["verdict"], _number(row["claimed_epsilon"]), provable)
        rows.append(f"| {' | '.join(cells)} |")
    found["claims"] = "\n".join(rows)
    rows = ["| recipe as printed | claimed | proved | promised by the accountant |", "|---|---|---|---|"]
    for row in json.loads((RESULTS / "errata.json").read_text())["rows"]:
        proved = f"{row['proved']:.3g}{', VIOLATED' * row['violated']}"
        cells = (f"{row['paper']}: {row['literal']}", f"{row['claim']:g}", proved, _number(row["upper"]))
        rows.append(f"| {' | '.join(cells)} |")
    found["errata"] = "\n".join(rows)
    found["adaptation"] = _adaptation(json.loads((RESULTS / "adaptation.json").read_text()))
    found["pretrained"] = _adaptation(json.loads((RESULTS / "pretrained.json").read_text()))
    found["real_tasks"] = _real_tasks(json.loads((RESULTS / "real_tasks.json").read_text()))
    found["mean_estimation"] = _mean_estimation(json.loads((RESULTS / "mean_estimation.json").read_text()))
    found["personalisation"] = _personalisation(json.loads((RESULTS / "personalisation.json").read_text()))
    rows = []
    for folder in sorted(path.parent for path in (RESULTS / "papers").glob("*/figure.png")):
        table = json.loads((folder / "table.json").read_text())
        picture = f"../benchmarks/results/papers/{folder.name}/figure.png"
        rows += [f":::{{dropdown}} {folder.name}: {table['title']}", f"![{table['title']}]({picture})", ":::", ""]
    found["papers"] = "\n".join(rows)
    return found


def _adaptation(results: dict[str, Any]) -> str:
    """Accuracy by what is trained and epsilon."""
    ways = {f"{row['way']} ({row['trained']:,})": {} for row in results["rows"]}
    for row in results["rows"]:
        ways[f"{row['way']} ({row['trained']:,})"][row["epsilon"]] = f"{100 * row['mean']:.1f}%"
    return _by_epsilon("what is trained", ways)


def _real_tasks(results: dict[str, Any]) -> str:
    """For each case its metric by epsilon, and what bounds it."""
    found = []
    for case in results["cases"]:
        cells = {row["epsilon"] or "without privacy": f"{row['mean']:.3g}" for row in case["rows"]}
        line = {"no record seen": f"{case['guess']:.3g}", **cells}
        found.append(_by_epsilon("what is learnt", {f"{case['title']}: {case['metric']}": line}))
    return "\n\n".join(found)


def _mean_estimation(results: dict[str, Any]) -> str:
    """Errors of both ends and of the best pull, times 1000."""
    rows = ["| epsilon | h | local | FedAvg | MR-MTL | at lambda |", "|---" * 6 + "|"]
    for best in (row for row in results["rows"] if row.get("best")):
        same = [row for row in results["rows"] if (row["epsilon"], row["spread"]) == (best["epsilon"], best["spread"])]
        errors = [f"{1000 * row['mean']:.4g}" for row in same if row["way"] in ("local", "fedavg") or row is best]
        rows.append(f"| {best['epsilon']:g} | {best['spread']:g} | {' | '.join(errors)} | {best['strength']:.3g} |")
    return "Mean squared errors times 1000:\n\n" + "\n".join(rows)


def _personalisation(results: dict[str, Any]) -> str:
    """For each case the accuracy by way and epsilon, with the worst tenth of the clients."""
    found = []
    for case in dict.fromkeys(row["case"] for row in results["rows"]):
        ways: dict[str, dict[Any, str]] = {}
        for row in (row for row in results["rows"] if row["case"] == case):
            cell = f"{100 * row['mean']:.1f}% ({100 * row['worst_tenth']:.1f}%)"
            ways.setdefault(row["way"], {})[row["epsilon"]] = cell
        found.append(_by_epsilon(case, ways))
    return "\n\n".join(found)


def _by_epsilon(what: str, lines: dict[str, dict[Any, str]]) -> str:
    """A table with a column for each epsilon, and for what else stands beside them."""
    columns = list(next(iter(lines.values())))
    heads = [f"epsilon {column:g}" if isinstance(column, float) else column for column in columns]
    rows = [f"| {what} | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    rows += [f"| {name} | {' | '.join(cells[column] for column in columns)} |" for name, cells in lines.items()]
    return "\n".join(rows)


def write_results() -> None:
    """What was measured, on one page."""
    _write("results.md", _with_tables((HERE / "results.in.md").read_text(), tables()))


def write_systems() -> None:
    """What other systems' configurations state and what is proved of them, computed anew."""
    rows = system_rows()
    lines = ["| configuration | verdict | claimed | alone | everything |", "|---|---|---|---|---|"]
    lines += [f"| {row.id} | {row.verdict} | {row.claim_text} | {row.noisy_text} | {row.total_text} |" for row in rows]
    about = []
    for row in rows:
        source = ", ".join(map(str, row.source.to_dict().values()))
        about += [f"### {row.id}", "", f"*{source}*", "", row.does, ""]
        about += [f"* `{reason}`" for reason in row.reasons] if row.check is None else []
        about += [f"* `{one.reason}`: {one.words}" for one in (row.check.findings if row.check else ())]
        about += [f"* {row.check.statement}"] if row.check else []
        about += ["", f"*What would make it true:* {row.needs}", ""]
    text = (HERE / "systems.in.md").read_text()
    _write("systems.md", _with_tables(text, {"systems": "\n".join(lines), "rows": "\n".join(about)}))


def _with_tables(text: str, found: dict[str, str]) -> str:
    for name, table in found.items():
        text = text.replace(f"\n<{name}>\n", f"\n{table}\n")
    return text


ON_SITE = {  # where a link that goes to a file of the repository goes on the site
    r"(\.\./)+notebooks/(\w+)\.ipynb": r"/gallery/\2.ipynb",
    r"(\.\./)+benchmarks/results/peers\.md": "/results.md#speed-against-other-systems",
    r"(\.\./)+benchmarks/results/compiled\.md": "/results.md#compiled-for-accelerators",
    r"(\.\./)+benchmarks/results/convolutions\.md": "/results.md#convolutions-on-a-cpu",
    r"(\.\./)+benchmarks/results/plan\.md": "/results.md#a-billion-clients-on-paper",
    r"(\.\./)+benchmarks/results/papers/[\w./-]+\.md": "/results.md#tables-and-figures-of-the-papers-rerun",
    r"(\.\./)+notebooks": "/gallery/index.md",
    r"(\.\./)+fedjax_dp/algorithms": "/catalogue.md",
    r"(\.\./)+fedjax_dp/parts/local_rules\.py": "/catalogue.md#local-rules",
    r"(\.\./)+fedjax_dp/tools/deployments/systems\.toml": "/systems.md",
}


def _at_home(app: Sphinx, page: str, source: list[str]) -> None:
    """Links of a page of the repository, as they go on the site."""
    for there, here in ON_SITE.items():
        source[0] = re.sub(rf"\]\({there}\)", f"]({here})", source[0])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def copy_gallery() -> None:
    """The notebooks, with what they showed, and a page that names them by their first heading and paragraph."""
    cards, names = [], []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text = "".join(json.loads(path.read_text())["cells"][0]["source"]).replace("](../docs/", "](../")
        title, _, rest = text.strip().partition("\n\n")
        title, about = title.lstrip("# "), " ".join(rest.split("\n\n")[0].split())
        cards += [f":::{{grid-item-card}} {title}", f":link: {path.stem}", ":link-type: doc", about, ":::", ""]
        names.append(path.stem)
        _write(f"gallery/{path.name}", path.read_text().replace("](../docs/", "](../"))
    grid = "\n".join(["::::{grid} 1 2 2 2", ":gutter: 3", "", *cards, "::::"])
    listed = "\n".join(names)
    _write(
        "gallery/index.md",
        "# Gallery\n\nNotebooks with what they printed. They run from top to bottom; the tests do so at tiny scale.\n\n"
        f"{grid}\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n",
    )


def _written(app: Sphinx, config: Config) -> None:
    write_api()
    write_catalogue()
    write_results()
    write_systems()
    copy_gallery()
    config.myst_substitutions = measured()


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", _written, priority=1)
    app.connect("source-read", _at_home)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
