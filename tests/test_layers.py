"""The house has floors: a module imports only what lies below it (read from the imports, nothing is run)."""

import ast
import pathlib
import subprocess
import sys

import fedjax_dp

ROOT = pathlib.Path(fedjax_dp.__file__).parent
FLOORS = [
    {"errors", "facts", "fields", "devices", "values", "draws", "processes", "schedules", "screen", "tables"},
    {"accounting", "data", "gradients"},
    {"statistics"},
    {"models"},
    {"batches", "bound", "clients", "cohort", "noise", "server"},
    {"aggregate", "answers", "correction", "privatizer", "secagg", "transport"},
    {"features", "local", "upload"},
    {"algorithm"},
    {"feed"},
    {"catalogue", "metrics", "simulation", "wire"},
    {"flow", "latency", "ledger"},
    {"claims", "personal", "prescribed", "scrutiny"},
    {"privacy"},
    {"runs", "checkpoint", "plots"},
    {"population"},
    {"config"},
    {"report", "folder", "overview", "sweeps", "audits", "testing"},
    {"reproductions"},
    {"cli", "__main__", "__init__"},
]
FLOOR_OF = {name: height for height, names in enumerate(FLOORS) for name in names}


def imports_of(path):
    """First-level fedjax_dp modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedjax_dp":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedjax_dp.")}
    return found


def module_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_module_has_a_floor():
    assert {module_of(path) for path in ROOT.rglob("*.py")} == set(FLOOR_OF)


def test_a_floor_imports_only_lower_floors_or_its_own():
    for path in ROOT.rglob("*.py"):
        own = module_of(path)
        for other in imports_of(path) - {own}:
            assert FLOOR_OF[other] <= FLOOR_OF[own], f"{path.relative_to(ROOT)} imports {other}, which lies above it"


def test_accounting_knows_neither_jax_nor_the_simulator():
    for path in (ROOT / "accounting").glob("*.py"):
        assert imports_of(path) <= {"accounting", "errors"}, path.name
        assert "jax" not in {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                         [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        }, path.name  # fmt: skip


def test_a_round_starts_without_what_only_accounting_needs():
    """SciPy loads its parts when they are used, if they are named `scipy.stats.binom`: half a second of every start."""
    late = ("scipy.stats", "scipy.signal", "scipy.optimize", "scipy.sparse.csgraph", "matplotlib", "ray")
    program = f"import sys, fedjax_dp.simulation; print([name for name in {late} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_modules_fit_a_reader():
    long = {path.name: len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert max(long.values()) <= 400, {name: lines for name, lines in long.items() if lines > 400}


PARTS = (
    "cohort", "answers", "batches", "bound", "noise", "privatizer", "upload", "aggregate", "correction", "features",
    "transport", "secagg", "server", "local",
)  # fmt: skip


def test_nobody_asks_for_the_class_of_a_part():
    """What must be known of a part it states itself (`facts`); its class is known to its own module alone."""
    home = {
        node.name: module for module in PARTS for node in ast.parse((ROOT / f"{module}.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    assert {"UniformCohort", "ClipRecords", "OutputGaussian", "PlainUpload", "SecureSum"} <= set(home)
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            asked = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
            compared = isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
            if asked or compared:
                names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} & set(home)
                found += [f"{path.name}:{node.lineno} {name}" for name in names if home[name] != path.stem]
    assert not found
