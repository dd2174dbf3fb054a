"""A sweep written as the program writes one, and a name that a user should not give."""

import itertools
import json

import numpy as np
from helpers import CLASSES

HOSTILE = "</script><img src=x onerror=document.title='broken'>&amp;\u2028'\"${1}"


def write_sweep(folder, axes, clip_norms=(0.5, 2.0), lost=(7, 31)):
    """A finished sweep with made numbers, the same each time."""
    axes = {**axes, "clip_norm": list(clip_norms)}
    folder.mkdir()
    random = np.random.default_rng(0)
    settings = list(itertools.product(*axes.values()))
    about = {"name": "sixty", "digest": "0", "axes": list(axes), "points": 5 * len(settings), "seeds": list(range(5))}
    (folder / "sweep.json").write_text(
        json.dumps(about | {"versions": {"jax": "0"}, "device": {"count": 1, "kind": "cpu"}})
    )
    lines = []
    for index, (setting, seed) in enumerate(itertools.product(settings, range(5))):
        values = dict(zip(axes, setting)) | {"seed": seed}
        epsilon = values["epsilon"]
        goal = 0.3 + 0.12 * np.log(epsilon) + 0.02 * random.normal() + 0.05 * (setting[0] == settings[0][0])
        history = [
            {
                "round": at,
                "test_accuracy": float(goal * at / (at + 1)),
                "test_loss": float(2 - goal),
                "train_loss": None,
            }
            for at in (2, 4, 6)
        ]
        done = index not in lost
        guarantee = {
            "epsilon": 0.999 * epsilon,
            "delta": 1e-3,
            "unit": "record",
            "adjacency": "replace-one",
            "view": "uploads",
            "accountant": "rdp",
            "epsilon_min": 0.999 * epsilon,
            "epsilon_median": 0.999 * epsilon,
            "epsilon_max": 0.999 * epsilon,
            "statement": f"epsilon {epsilon:g} at delta 0.001.",
            "assumptions": ["made up"],
            "warnings": [],
            "claims": [],
        }
        record = {
            "point": f"p{index}",
            "index": index,
            "values": values,
            "config": {**values, "rounds": 6},
            "status": "done" if done else "diverged",
            "reason": None if done else "loss must be finite",
            "task": CLASSES,
            "history": history if done else history[:1],
            "guarantee": guarantee,
            "seconds": 0.5,
        }
        lines.append(json.dumps(record))
    (folder / "points.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "selection.json").write_text(json.dumps({"short": "choosing costs", "statement": "choosing costs much"}))
    return folder
