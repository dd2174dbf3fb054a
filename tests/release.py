"""Proves what would be released: `python tests/release.py` builds, checks, installs and runs it outside the checkout.

Sdist and wheel are built from a copy of the tree, checked, put into an index of files, and installed from there into an
empty environment; its dependencies come from the usual index.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
APART = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__", "benchmarks", "notebooks")
RUN = ("run", "--rounds", "2", "--num-clients", "10", "--cohort-size", "5", "--out", "run", "--json")
ACCOUNTING = "import sys, fedjax_dp.accounting; assert 'jax' not in sys.modules"
IN_SDIST = {"PKG-INFO", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in", "pyproject.toml"}
MADE = {"setup.cfg"}  # by setuptools


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    began = time.perf_counter()
    print(f"== {what}", flush=True)
    yield
    print(f"   {time.perf_counter() - began:.1f} s", flush=True)


def call(*command: object, where: pathlib.Path) -> str:
    """What a program prints; stops with all of it where it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=where, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: pathlib.Path) -> pathlib.Path:
    """The programs of a new one."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def content(wheel: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as held:
        return {name: held.read(name) for name in held.namelist()}


def require_same(what: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        raise SystemExit(f"{what} lacks {sorted(wanted - found)} and should not hold {sorted(found - wanted)}")


def check_wheel(wheel: pathlib.Path, tree: pathlib.Path, again: pathlib.Path) -> None:
    """It holds the package, all of it and nothing else, and is what the tree itself makes."""
    held = content(wheel)
    package = {str(path.relative_to(tree)) for path in (tree / "fedjax_dp").rglob("*") if path.is_file()}
    require_same(wheel.name, {name for name in held if ".dist-info/" not in name}, package)
    for needed in ("fedjax_dp/py.typed", "fedjax_dp/__init__.pyi"):
        if needed not in held:
            raise SystemExit(f"{wheel.name} lacks {needed}")
    if not any(name.endswith(".toml") for name in held):
        raise SystemExit(f"{wheel.name} lacks the recipes")
    if held != content(again):
        raise SystemExit(f"{wheel.name} from the sdist is not the wheel that the tree makes")


def check_sdist(sdist: pathlib.Path) -> None:
    """It holds the package and the pages beside it."""
    with tarfile.open(sdist) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
    beside = {name for name in names if name and "/" not in name and not name.startswith("fedjax_dp")}
    require_same(sdist.name, beside, IN_SDIST | MADE)


def index_of(folder: pathlib.Path, *files: pathlib.Path) -> str:
    """The address of an index (PEP 503) that holds the files."""
    project = folder / "simple" / "fedjax-dp"
    project.mkdir(parents=True)
    for file in files:
        shutil.copy(file, project)
    links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in files)
    (project / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")
    return (folder / "simple").as_uri()


def check_installed(programs: pathlib.Path, where: pathlib.Path, version: str) -> None:
    """What a user does first."""
    told = call(programs / "fedjax-dp", "--version", where=where).strip()
    if told != f"fedjax-dp {version}":
        raise SystemExit(f"fedjax-dp --version says {told!r}, of {version}")
    shutil.rmtree(where / "run", ignore_errors=True)
    call(programs / "fedjax-dp", *RUN, where=where)
    call(programs / "python", "-c", ACCOUNTING, where=where)


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        tree, elsewhere = work / "tree", work / "elsewhere"
        elsewhere.mkdir()
        shutil.copytree(ROOT, tree, ignore=APART)
        with step("build, twine check --strict"):
            tools = environment(work / "tools")
            call(tools / "pip", "install", "--quiet", "build", "twine", where=elsewhere)
            call(tools / "python", "-m", "build", "--outdir", work / "dist", tree, where=elsewhere)
            (wheel,), (sdist,) = (tuple((work / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
            call(tools / "python", "-m", "build", "--wheel", "--outdir", work / "again", tree, where=elsewhere)
            call(tools / "twine", "check", "--strict", wheel, sdist, where=elsewhere)
        with step("what they hold"):
            check_wheel(wheel, tree, work / "again" / wheel.name)
            check_sdist(sdist)
            sizes = (f"{file.name} {file.stat().st_size / 1e3:,.0f} kB" for file in (wheel, sdist))
            print(f"   {', '.join(sizes)}")
        version = wheel.name.split("-")[1]
        with step("install the wheel from an index of files, and run it"):
            programs = environment(work / "empty")
            asked, index = f"fedjax-dp=={version}", index_of(work, wheel, sdist)
            # By itself first, so that nothing of that name on another index can take its place.
            call(programs / "pip", "install", "--quiet", "--no-deps", "--index-url", index, asked, where=elsewhere)
            call(programs / "pip", "install", "--quiet", asked, where=elsewhere)
            call(programs / "pip", "check", where=elsewhere)
            check_installed(programs, elsewhere, version)
        with step("install the sdist, and run it"):
            again = ("install", "--quiet", "--no-deps", "--force-reinstall", sdist)
            call(programs / "pip", *again, where=elsewhere)
            check_installed(programs, elsewhere, version)
    print(f"fedjax-dp {version} can be released ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
