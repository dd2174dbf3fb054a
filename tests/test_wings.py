"""The house has floors: a module imports only what lies below it (read from the imports, nothing is run)."""

import ast
import importlib
import pathlib
import subprocess
import sys
import types

import pytest

import fedjax_dp

ROOT = pathlib.Path(fedjax_dp.__file__).parent
CORE = [  # wings, and the few modules that stand beside them, from the ground up
    {"devices", "display", "errors", "hooks", "numpy_streams", "prng", "schedules", "small_reductions"},
    {"validation", "folders", "own_code"},
    {"accounting"},
    {"options", "pytrees"},
    {"data", "execution", "gradients"},
    {"tasks"},
    {"models"},
    {"parts"},
    {"rounds"},
    {"algorithms", "inspection"},
    {"privacy"},
    {"experiments"},
    {"sweeps"},
]
TOOLS = [
    {"figures", "formats", "deployments"},
    {"audits", "papers", "trackers"},
    {"latency", "reports"},
    {"cli", "testing"},
]
FLOORS = [*CORE, *TOOLS, {"__main__", "__init__", "tools"}]
FLOOR_OF = {name: height for height, names in enumerate(FLOORS) for name in names}


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in ROOT.rglob("*.py")}


def imports_of(path, types=True):
    """Modules of the package that a file imports, anywhere in it; without `types` not what type checkers alone read."""
    found, tree = set(), ast.parse(path.read_text())
    if not types:
        tree.body = [node for node in tree.body if "TYPE_CHECKING" not in ast.dump(getattr(node, "test", ast.Pass()))]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedjax_dp":
            base = node.module.removeprefix("fedjax_dp").strip(".")
            below = {f"{base}.{alias.name}".strip(".") for alias in node.names}
            found |= (below & set(MODULES)) | ({base} if base and below - set(MODULES) else set())
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("fedjax_dp.") for alias in node.names if "fedjax_dp." in alias.name}
    return found - {name_of(path)}


def wing_of(name):
    """The folder of a module, of tools the one below `tools`."""
    return name.removeprefix("tools.").split(".")[0]


def test_the_core_and_one_more_folder_lie_at_the_top():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == {name for floor in CORE for name in floor if (ROOT / name).is_dir()} | {"tools"}
    assert {path.parent.name for path in (ROOT / "tools").glob("*/__init__.py")} == set().union(*TOOLS)


def test_every_wing_has_a_floor():
    assert {wing_of(name) for name in MODULES} == set(FLOOR_OF)


def test_a_wing_imports_only_lower_floors_or_itself():
    for name, path in MODULES.items():
        for other in map(wing_of, imports_of(path)):
            lower = FLOOR_OF[other] < FLOOR_OF[wing_of(name)]
            assert lower or other == wing_of(name), f"{name} imports {other}, which does not lie below it"


def test_no_modules_import_one_another():
    """Inside a wing too there is an order: modules that lead back to themselves are named."""
    left = {name: imports_of(path, types=False) for name, path in MODULES.items()}
    while free := [name for name, others in left.items() if not others & set(left)]:
        for name in free:
            del left[name]
    assert not left, f"in circles, or above one: {sorted(left)}"


def test_accounting_knows_neither_jax_nor_the_simulator():
    for path in (ROOT / "accounting").glob("*.py"):
        assert set(map(wing_of, imports_of(path))) <= {"accounting", "display", "errors"}, path.name
        nodes = ast.walk(ast.parse(path.read_text()))
        froms = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        nodes = ast.walk(ast.parse(path.read_text()))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert "jax" not in {name.split(".")[0] for name in froms + names}, path.name


@pytest.mark.parametrize(
    ("module", "late"),
    [
        ("fedjax_dp", ("fedjax_dp.tools",)),
        # SciPy loads its parts when they are used, if they are named `scipy.stats.binom`: half a second of every start.
        (
            "fedjax_dp.rounds.simulation",
            ("scipy.stats", "scipy.signal", "scipy.optimize", "scipy.sparse.csgraph", "matplotlib", "ray"),
        ),
    ],
    ids=["tools", "what only accounting needs"],
)
def test_it_starts_without(module, late):
    program = f"import sys, {module}; print([name for name in sys.modules if name.startswith({late})])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_nobody_asks_for_the_class_of_a_part():
    """What must be known of a part it states itself (`facts`); its class is known to its own module alone."""
    home = {
        node.name: path.stem
        for path in (ROOT / "parts").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
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


def test_every_listed_name_is_there_and_type_checkers_know_it():
    for stub in ROOT.rglob("__init__.pyi"):
        names = [alias for node in ast.parse(stub.read_text()).body for alias in getattr(node, "names", [])]
        package = importlib.import_module(".".join(stub.parent.relative_to(ROOT.parent).parts))
        assert {alias.name for alias in names} == set(package.__all__)
        assert all(alias.name == alias.asname for alias in names), "only `import X as X` is handed on"
        for name in package.__all__:
            assert getattr(package, name).__doc__ or name.isupper(), name


def test_the_top_holds_what_a_notebook_needs_and_says_where_the_rest_is():
    namespaces = {name for name in fedjax_dp.__all__ if isinstance(getattr(fedjax_dp, name), types.ModuleType)}
    assert all(getattr(fedjax_dp, name) is entry for name, entry in fedjax_dp.CATALOGUE.items())
    assert set(fedjax_dp.CATALOGUE) <= set(fedjax_dp.__all__)
    assert {"parts", "accounting", "data", "sweeps"} <= namespaces
    for name in namespaces:
        space = getattr(fedjax_dp, name)
        assert space.__all__, name
        assert len(space.__doc__.splitlines()[0]) > 20, name
    with pytest.raises(AttributeError, match=r"no attribute 'PoissonCohort'; it is fedjax_dp\.parts\.PoissonCohort"):
        _ = fedjax_dp.PoissonCohort
    with pytest.raises(AttributeError, match=r"no attribute 'Nothing'$"):
        _ = fedjax_dp.Nothing
