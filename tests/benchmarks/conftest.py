import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))  # where its scripts find `forecast`
