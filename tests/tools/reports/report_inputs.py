"""A sweep written as the program writes one, and a name that a user should not give."""

import itertools
import json

import numpy as np
from sweep_points import point, write_cost

from fedjax_dp.sweeps.records import SWEEP_FOLDER

HOSTILE = "</script><img src=x onerror=document.title='broken'>&amp;\u2028'\"${1}"


def write_sweep(folder, axes, clip_norms=(0.5, 2.0), lost=(7, 31)):
    """A finished sweep with made numbers, the same each time."""
    axes = {**axes, "clip_norm": list(clip_norms)}
    folder.mkdir()
    random = np.random.default_rng(0)
    settings = list(itertools.product(*axes.values()))
    about = {"name": "sixty", "digest": "0", "axes": list(axes), "points": 5 * len(settings), "seeds": list(range(5))}
    SWEEP_FOLDER.write(folder, about | {"versions": {"jax": "0"}, "device": {"count": 1, "kind": "cpu"}})
    lines = []
    for index, (setting, seed) in enumerate(itertools.product(settings, range(5))):
        values = dict(zip(axes, setting)) | {"seed": seed}
        goal = 0.3 + 0.12 * np.log(values["epsilon"]) + 0.02 * random.normal() + 0.05 * (setting[0] == settings[0][0])
        accuracies = [float(goal * at / (at + 1)) for at in (2, 4, 6)]
        ended = ("diverged", "loss must be finite") if index in lost else ("done", None)
        accuracies = accuracies[:1] if index in lost else accuracies
        record = point(
            index, values, accuracies, ended[0], 0.999 * values["epsilon"], ended[1], {**values, "rounds": 6}
        )
        promise = record["guarantee"]
        promise |= {f"epsilon_{which}": promise["epsilon"] for which in ("min", "median", "max")}
        promise |= {"accountant": "rdp", "assumptions": ["made up"], "warnings": [], "claims": []}
        lines.append(json.dumps(record))
    (folder / "points.jsonl").write_text("\n".join(lines) + "\n")
    write_cost(folder, short="choosing costs", statement="choosing costs much")
    return folder
