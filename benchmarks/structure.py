"""How large the package is, counted: functions of the plain path, keywords, imports of the core, lines, names.

    python benchmarks/structure.py            # a table
    python benchmarks/structure.py --json
    python benchmarks/structure.py --list guarantee    # each function of the plain path, by file; or run

The plain path is a second call with the same arguments: caches are filled and programs compiled. Counted are named
functions of the package, by `sys.setprofile`; lambdas and comprehensions are aside.
"""

import argparse
import ast
import collections
import inspect
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import fedjax_dp as fdp

PACKAGE = pathlib.Path(fdp.__file__).parent


def executed(call: Callable[[], Any]) -> collections.Counter[tuple[str, str]]:
    """How often each named function of the package begins while `call` runs a second time, by (file, name)."""
    call()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and file.startswith(str(PACKAGE)) and not frame.f_code.co_name.startswith("<"):
            counts[str(pathlib.Path(file).relative_to(PACKAGE)), name] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counts


def plain_calls() -> dict[str, Callable[[], Any]]:
    """dpnfl with Poisson batches on the digits, ten clients: its Guarantee, and a run without a folder."""
    dataset = fdp.load("digits")
    data = fdp.federate(dataset, fdp.data.iid(dataset, [140] * 10, seed=0))
    algorithm = fdp.dpnfl(
        cohort_size=5,
        batches="poisson",
        batch_size=14,
        local_steps=2,
        learning_rate=0.1,
        clip_norm=1.0,
        noise_multiplier=2.0,
    )
    return {
        "guarantee": lambda: fdp.guarantee(algorithm, data, rounds=4, delta=1e-3),
        "run": lambda: fdp.run(algorithm, data, rounds=4, delta=1e-3),
    }


def keywords(entry: Callable[..., Any]) -> int:
    """How many arguments an entry takes by name."""
    parameters = inspect.signature(entry).parameters.values()
    return sum(one.kind is one.KEYWORD_ONLY for one in parameters)


def wing(path: pathlib.Path) -> str:
    """The first folder, or the module at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of_tools() -> list[str]:
    """Modules of the core that import a tool, anywhere in them; the top of the package says where tools are."""
    result = []
    for path in modules():
        if wing(path) in ("tools", "__init__", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.split(".")[:2] == ["fedjax_dp", "tools"] for name in names):
                result.append(str(path.relative_to(PACKAGE)))
    return sorted(set(result))


def doubled_classes() -> dict[str, list[str]]:
    """Public classes whose name stands in several modules."""
    places = collections.defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def lines(of: Callable[[pathlib.Path], bool], root: pathlib.Path = PACKAGE) -> int:
    """Lines of Python below a folder."""
    files = (path for ending in ("py", "pyi") for path in root.rglob(f"*.{ending}"))
    return sum(len(path.read_text().splitlines()) for path in files if of(path))


def counted() -> dict[str, Any]:
    """All numbers of the table."""
    result: dict[str, Any] = {}
    for name, call in plain_calls().items():
        functions = executed(call)
        result[f"functions of a plain {name}"] = len(functions)
        result[f"files of a plain {name}"] = len({file for file, _ in functions})
    for name in ("fedavg", "dpnfl"):
        result[f"keywords of {name}"] = keywords(getattr(fdp, name))
    result["modules of the core that import tools"] = len(imports_of_tools())
    result["public class names that stand twice"] = len(doubled_classes())
    result["lines of the core"] = lines(lambda path: wing(path) != "tools")
    result["lines of tools"] = lines(lambda path: wing(path) == "tools")
    result["lines of tests"] = lines(lambda path: True, PACKAGE.parent / "tests")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", choices=("guarantee", "run"))
    options = parser.parse_args()
    if options.list:
        by_file = collections.defaultdict(list)
        for (file, name), count in executed(plain_calls()[options.list]).items():
            by_file[file].append(f"{name} x{count}")
        for file, names in sorted(by_file.items()):
            print(f"{file} ({len(names)})\n    " + "\n    ".join(sorted(names)))
        return
    numbers = counted()
    if options.json:
        print(json.dumps(numbers, indent=1))
        return
    for name, number in numbers.items():
        print(f"{name:45} {number:8,}")
    for name, where in doubled_classes().items():
        print(f"  {name}: {', '.join(where)}")


if __name__ == "__main__":
    main()
