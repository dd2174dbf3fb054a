"""Low-rank adapters in files of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

Names are those of the base, as PyTorch stores it: `base_model.model.` + its layer + `.lora_A.weight (r, inputs)`,
`.lora_B.weight (outputs, r)`, and layers that are trained whole, such as a head.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.models import low_rank
from fedjax_dp.models.layouts import CLASSES, SEQUENCE, LanguageModel, file_name, is_transposed
from fedjax_dp.models.model import NetworkModel
from fedjax_dp.models.networks import by_path
from fedjax_dp.models.starts import Start

log = logging.getLogger("fedjax_dp")
ROOT = "base_model.model."
_FACTORS = {low_rank.A: "lora_A.weight", low_rank.B: "lora_B.weight"}
_TASKS = {CLASSES: "SEQ_CLS", SEQUENCE: "CAUSAL_LM"}
_NOT_EMPTY = ("use_dora", "rank_pattern", "alpha_pattern", "trainable_token_indices", "layers_to_transform")


class Terms(NamedTuple):
    """The low-rank terms of an adapter: the values of all parameters, its kernels, rank and alpha."""

    start: Start
    kernels: tuple[str, ...]
    rank: int
    alpha: float


def language_model(model: NetworkModel, what: str) -> LanguageModel:
    """The network of a pretrained model.

    Raises: ConfigurationError for another network.
    """
    network = getattr(model.network, "module", None)
    if not isinstance(network, LanguageModel):
        raise errors.refuse(what, model.network.name, "a model of models.pretrained", "use a .safetensors file")
    return network


def _exported(model: NetworkModel) -> LanguageModel:
    """The network of a model that is exported; its classes may be scored in a way that is ours alone."""
    network = language_model(model, "format")
    if network.output == CLASSES and network.pool == "mean":
        log.warning(
            "classes are scored from the mean over tokens here, by transformers from one token: there, load the body, "
            "average its states over tokens, and apply the head to that"
        )
    return network


def _name(network: LanguageModel, path: str) -> str:
    """The name in an adapter's file of a parameter, or of a factor of a kernel."""
    kernel, _, last = path.rpartition("/")
    if last in _FACTORS:
        return f"{ROOT}{file_name(network, kernel).removesuffix('weight')}{_FACTORS[last]}"
    return f"{ROOT}{file_name(network, path)}"


def adapter_files(model: NetworkModel, params: Mapping[str, Any], base: str) -> tuple[dict[str, np.ndarray], str]:
    """The tensors of an adapter by their names in its file, and the text of its configuration.

    params  the trained parameters; base: the name of the base's folder.
    Raises: ConfigurationError where something else than low-rank terms and heads is trained.
    """
    network, adaptation, frozen = _exported(model), model.adaptation, model.frozen
    trained = () if adaptation is None else adaptation.trained
    body = [path for path in trained if not path.startswith(("head", "pooler"))]
    if adaptation is None or adaptation.low_rank is None or frozen is None or body:
        got = f"peft for a run that trains {body[0] if body else 'no low-rank terms'}"
        raise errors.refuse("format", got, "used with low-rank terms and heads", "--merged writes the whole model")
    terms, every = adaptation.low_rank, {**frozen.values, **params}
    tensors = {}
    for path in (*trained, *(f"{kernel}/{factor}" for kernel in terms.names for factor in _FACTORS)):
        value = np.asarray(every[path], np.float32)
        turned = is_transposed(network, path) or path.rpartition("/")[2] in _FACTORS
        tensors[_name(network, path)] = np.ascontiguousarray(value.T if turned else value)
    layers = sorted(file_name(network, kernel).removesuffix(".weight") for kernel in terms.names)
    last = {layer.rpartition(".")[2] for layer in layers}
    kernels = [path for path in (*frozen.values, *trained) if path.endswith("/kernel")]
    alike = [path for path in kernels if file_name(network, path).split(".")[-2] in last]
    saved = sorted({file_name(network, path).split(".")[0] for path in trained})
    config = {
        "peft_type": "LORA",
        "task_type": _TASKS.get(network.output),
        "base_model_name_or_path": base,
        "r": terms.rank,
        "lora_alpha": round(float(frozen.scale) * terms.rank, 6),
        "lora_dropout": 0.0,
        "target_modules": sorted(last) if len(alike) == len(layers) else layers,  # PEFT takes all layers of a last name
        "modules_to_save": saved or None,
        "bias": "none",
        "fan_in_fan_out": not is_transposed(network, terms.names[0]),
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }
    return tensors, json.dumps(config, indent=1) + "\n"


def merged_files(model: NetworkModel, whole: Any) -> dict[str, np.ndarray]:
    """All parameters, with low-rank terms added, by the base's own names."""
    network = _exported(model)
    found = {path: np.asarray(value, np.float32) for path, value in by_path(whole).items()}
    return {
        file_name(network, path): np.ascontiguousarray(value.T if is_transposed(network, path) else value)
        for path, value in found.items()
    }


def terms_of(start: Start, model: NetworkModel, own: Mapping[str, Any]) -> Terms:
    """The terms of an adapter that was read, over the base's `own` values.

    Raises: ConfigurationError for adapters of another kind or of another base.
    """
    network, config, where = language_model(model, "start"), start.adapter or {}, start.origin.name

    def refuse(name: str, wanted: str) -> errors.ConfigurationError:
        return errors.refuse(
            where, f"{name} {json.dumps(config.get(name))[:60]}", wanted, "merge it into its base first"
        )

    for name, only in (("peft_type", "LORA"), ("bias", "none")):
        if config.get(name, only) != only:
            raise refuse(name, only)
    for name in _NOT_EMPTY:
        if config.get(name):
            raise refuse(name, "left out")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1 or isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise refuse("r", "a positive integer, with a number lora_alpha")
    shapes = {path: leaf.shape for path, leaf in by_path(jax.eval_shape(model.base.init, jax.random.key(0))).items()}
    for path, shape in [(path, shape) for path, shape in shapes.items() if path.endswith("/kernel")]:
        shapes |= {f"{path}/{low_rank.A}": (shape[0], rank), f"{path}/{low_rank.B}": (rank, shape[1])}
    names, values = {_name(network, path): path for path in shapes}, {}
    for name, value in start.values.items():
        if name not in names:
            raise errors.refuse(where, f"the tensor {name}", "those of its base", errors.suggestion(name, names))
        path = names[name]
        turned = is_transposed(network, path) or path.rpartition("/")[2] in _FACTORS
        values[path] = value.T if turned else value
        if values[path].shape != shapes[path]:
            raise errors.refuse(where, f"{name} of {value.shape}", f"the numbers of {shapes[path]} in its base")
    kernels = tuple(path.removesuffix(f"/{low_rank.A}") for path in values if path.endswith(f"/{low_rank.A}"))
    scale = math.sqrt(rank) if config.get("use_rslora") else 1.0
    return Terms(dataclasses.replace(start, values={**own, **values}, adapter=None), kernels, rank, alpha * scale)
