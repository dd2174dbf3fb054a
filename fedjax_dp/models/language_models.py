"""Pretrained language models from a folder: `config.json`, `*.safetensors` and perhaps `tokenizer.json`.

The layouts are `bert`, `roberta`, `gpt2` and `llama`. Nothing is downloaded, no pickle is read, and no code of the
folder is run.
"""

import dataclasses
import json
import logging
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.models.freezing import freeze
from fedjax_dp.models.layouts import (
    CLASSES,
    HIDDEN,
    LAYOUTS,
    MASKED,
    SEQUENCE,
    LanguageModel,
    Layout,
    file_name,
    is_transposed,
)
from fedjax_dp.models.model import NetworkModel, require_sizes
from fedjax_dp.models.networks import Linen, by_path
from fedjax_dp.models.origins import KEY, Origin, with_parameters
from fedjax_dp.models.starts import CONVERT, PICKLED, Start, digest, open_safetensors
from fedjax_dp.models.transformers import ACTIVATIONS, BlockSettings
from fedjax_dp.tasks import TokenCrossEntropy

log = logging.getLogger("fedjax_dp")
PUBLIC = "text that is treated as public"  # what a folder was trained on, unless somebody says more
BLOCK, ALIGNED = 2**22, 64  # elements that are read at once; bytes
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
_KINDS: dict[str, type] = {
    "epsilon": float,
    "activation": str,
    **dict.fromkeys(("tied", "attention_bias", "mlp_bias"), bool),
}
_NEVER = {"sliding_window": None, "quantization_config": None, "auto_map": None}  # of any layout
# Keys that change nothing here: of training, generation and storage. Others are named in the log.
_SILENT = re.compile(
    "model_type|architectures|(torch_)?dtype|use_cache|initializer_range|transformers_version|pretraining_tp|num_labels|"
    "id2label|label2id|problem_type|_name_or_path|gradient_checkpointing|n_ctx|rope_.*|.*_token_id|.*(dropout|pdrop).*|"
    "task_specific_params|summary_.*|layer_norm_eps|output_.*|return_dict.*"
)
# Tensors of files that are no parameters; copies of the table; and heads of other tasks.
_UNUSED = re.compile(r"(.*\.)?(position_ids|token_type_ids|attn\.bias|attn\.masked_bias|rotary_emb\.inv_freq)")
_COPIES = re.compile(r"lm_head\.weight|(cls\.predictions|lm_head)\.decoder\.weight")
_HEADS = re.compile(r"(pooler|classifier|score|cls|lm_head|qa_outputs)\..*")


class _Config(NamedTuple):
    """A `config.json`."""

    path: pathlib.Path
    keys: Mapping[str, Any]

    def refuse(self, got: str, wanted: str, remedy: str = "") -> errors.ConfigurationError:
        return errors.refuse(str(self.path), got, wanted, remedy)

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The value of a key: a positive integer or number, a truth value, or an activation.

        Raises: ConfigurationError for another value, and for a missing one without a default.
        """
        value: Any = self.keys.get(key)
        if value is None and default:
            return default[0]
        wanted = {int: "a positive integer", float: "a positive number", bool: "true or false"}
        if kind is str:
            if value not in ACTIVATIONS:
                raise self.refuse(f"{key} {value!r}", f"one of {', '.join(ACTIVATIONS)}")
        elif type(value) not in (kind, int if kind is float else kind) or (kind is not bool and not 0 < value < 2**31):
            raise self.refuse(f"{key} {value!r}", wanted[kind], "take the folder as its maker published it")
        return value


def _read_config(folder: pathlib.Path) -> tuple[_Config, Layout]:
    remedy = "nothing is downloaded: hf download NAME --local-dir FOLDER makes one"
    path = folder / CONFIG
    if not path.is_file():
        got = f"{folder}{' without ' + CONFIG if folder.is_dir() else ''}"
        raise errors.refuse("pretrained", got, f"a folder with {CONFIG} and safetensors", remedy)
    config = _Config(path, folders.read_json(path))
    if not isinstance(config.keys, dict):
        raise config.refuse("no table", "a table of keys")
    if (name := config.keys.get("model_type")) not in LAYOUTS:
        near = "layouts that are near, such as mistral or distilbert, are not the same"
        raise config.refuse(f"model_type {name!r}", f"one of {', '.join(LAYOUTS)}", near)
    layout = LAYOUTS[name]
    for key, value in {**layout.only, **_NEVER}.items():
        if (other := config.keys.get(key)) not in (None, value):
            raise config.refuse(f"{key} {json.dumps(other)[:60]}", "left out" if value is None else json.dumps(value))
    known = {*layout.keys.values(), *layout.only, *_NEVER}
    if unknown := [key for key in config.keys if key not in known and not _SILENT.fullmatch(key)]:
        log.info("%s: keys that are not used: %s", path, ", ".join(unknown))
    return config, layout


def _fields(config: _Config, layout: Layout) -> dict[str, Any]:
    """The fields of a `LanguageModel` that a config decides."""
    defaults = dict.fromkeys(layout.optional) | dict(layout.defaults)
    found: dict[str, Any] = {
        field: config.get(key, _KINDS.get(field, int), *([defaults[field]] if field in defaults else []))
        for field, key in layout.keys.items()
        if field != "pad"
    }
    pad = config.keys.get("pad_token_id", defaults["pad"])
    pad = config.keys.get("eos_token_id") if pad is None else pad
    pad = pad[0] if isinstance(pad, list) and pad else pad
    if pad is not None and (type(pad) is not int or not 0 <= pad < found["vocabulary"]):
        raise config.refuse(f"pad_token_id {pad!r}", f"an id from 0 to {found['vocabulary'] - 1}")
    found |= {"pad": pad, **layout.fixed}
    heads, groups = found["heads"], found.get("key_heads") or found["heads"]
    if found.get("head_width") is None and found["width"] % heads:
        raise config.refuse(f"a width of {found['width']} with {heads} heads", "a multiple of the heads")
    if heads % groups:
        raise config.refuse(f"{heads} heads of queries and {groups} of keys", "a multiple of the heads of keys")
    if found.get("rms"):
        found["rotary"] = _frequencies(config, found["head_width"] or found["width"] // heads)
    of_block = {field.name for field in dataclasses.fields(BlockSettings)}
    block = BlockSettings(**{name: value for name, value in found.items() if name in of_block})
    rest = {name: value for name, value in found.items() if name not in of_block}
    return {"block": block, "head_activation": block.activation, **rest}


def _frequencies(config: _Config, size: int) -> tuple[float, ...]:
    """Frequencies of rotary positions `(size / 2,)`, of configs of versions 4 and 5 of transformers."""
    settings = config.keys.get("rope_parameters") or config.keys.get("rope_scaling") or {}
    if not isinstance(settings, dict):
        raise config.refuse(f"rope_parameters {settings!r}", "a table")
    rope = _Config(config.path, {"rope_theta": config.keys.get("rope_theta"), **settings})
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise config.refuse(f"rope_type {kind!r}", "default, linear or llama3")
    if size % 2:
        raise config.refuse(f"heads of width {size}", "an even width, for rotary positions")
    frequencies = rope.get("rope_theta", float, 10_000.0) ** (-2.0 * np.arange(size // 2) / size)
    if kind == "default":
        return tuple(frequencies.tolist())
    slow = frequencies / rope.get("factor", float)
    if kind == "linear":
        return tuple(slow.tolist())
    low, high = rope.get("low_freq_factor", float), rope.get("high_freq_factor", float)
    if not low < high:
        raise config.refuse(f"low_freq_factor {low}", f"below high_freq_factor {high}")
    turns = rope.get("original_max_position_embeddings", float) * frequencies / (2 * np.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return tuple(((1 - share) * slow + share * frequencies).tolist())


def pretrained(
    folder: str | os.PathLike[str],
    data: Any,
    *,
    task: str | None = None,
    pool: str | None = None,
    dtype: Any = jnp.float32,
    trained_on: str | None = None,
) -> NetworkModel:
    """A pretrained language model for the records of `data`, all of which is trained until `freeze` takes a part.

    folder   with config.json of layout `bert`, `roberta`, `gpt2` or `llama`, and safetensors, whole or in shards;
    data     a data set, or its format: records `(length,)` of token ids, or `(2, length)` of ids and token types;
    task     `classes` (or another task of single scores), `sequence` (the next token; gpt2, llama), `masked` (bert,
             roberta) or `hidden`, the states of the last layer; None: that of the data;
    pool     what is classified: the `first` token (bert, roberta), the `last` one that is not padding (gpt2, llama), or
             the `mean` over those that are not;
    dtype    of the forward and backward pass, see `NetworkModel`, and of stored values that are not trained;
    trained_on  what it was trained on, for the Guarantee. It is treated as public, unless a run wrote it: then epsilon
             covers that run too.
    Raises:  ConfigurationError in one line for a folder, a config or tensors that are not these.
    """
    folder = pathlib.Path(folder)
    config, layout = _read_config(folder)
    name, fields = config.keys["model_type"], _fields(config, layout)
    shape, task = tuple(data.record_shape), task or getattr(data, "task", CLASSES)
    output = task if task in (HIDDEN, MASKED, SEQUENCE) else CLASSES
    if output not in (HIDDEN, *layout.heads):
        others = [kind for kind, one in LAYOUTS.items() if output in one.heads]
        raise errors.refuse("task", task, f"one that {name} is made for", f"{' and '.join(others)} are made for it")
    usual = "last" if fields["block"].causal else "first"
    if pool is not None:
        errors.require_choice("pool", pool, (usual, "mean"))
    if pool == "mean":
        fields["pooler"] = ""
    network = LanguageModel(
        layout=name, **fields, output=output, outputs=getattr(data, "classes", 0), pool=pool or usual
    )
    _check_records(name, network, shape, getattr(data, "vocabulary", None))
    if output == CLASSES:
        require_sizes(shape, network.outputs)
    model = NetworkModel(Linen(network), shape, tokens=True, dtype=dtype)
    if output in (SEQUENCE, MASKED):
        model = dataclasses.replace(model, loss_of=TokenCrossEntropy(pad=-100 if network.pad is None else network.pad))
    if hasattr(data, "task") and output != HIDDEN:
        model = model.for_data(data)
    wanted = by_path(jax.eval_shape(model.init, jax.random.key(0)))
    places = _places(folder)
    values = dict(_values(folder, places, network, wanted, dtype))
    lacking = [path for path in wanted if path not in values]
    if body := [path for path in lacking if not path.startswith(("head", "pooler"))]:
        got = f"no tensor {file_name(network, body[0])}"
        raise errors.refuse(str(folder), got, "every one of the layout", "fetch the folder whole")
    if lacking:
        log.info("%s: %s begin at random, as the folder has none", folder, ", ".join(lacking))
    ledger = _ledger(places)
    words, public = (trained_on, None) if ledger else (trained_on or PUBLIC, True)
    origin = Origin(folder.name, digest(folder), words, public, ledger, foreign=not ledger)
    return freeze(model, start=Start(values, origin), fresh=",".join(lacking) or None)


def _check_records(name: str, network: LanguageModel, shape: tuple[int, ...], vocabulary: Any) -> None:
    """Refuse records that are no texts, are too long, or of a vocabulary that the table does not hold."""
    if len(shape) != 1 and not (len(shape) == 2 and shape[0] == 2 and network.types):
        wanted = "(length,) of token ids" + ", or (2, length) of ids and types" * (network.types > 0)
        raise errors.refuse("record_shape", shape, wanted, "give --vocabulary a tokenizer.json for texts")
    most = (network.positions or network.longest) - ((network.pad or 0) + 1 if network.counted else 0)
    if not 3 <= shape[-1] <= most:
        wanted = f"3 to {most} for this {name}"
        raise errors.refuse("record", f"{shape[-1]} tokens", wanted, "--length cuts texts and fills them up")
    if vocabulary is not None and vocabulary.size > network.vocabulary:
        wanted = f"at most {network.vocabulary:,}, those of this {name}"
        raise errors.refuse(
            "vocabulary", f"{vocabulary.size:,} tokens", wanted, "take the tokenizer.json of its folder"
        )


def _places(folder: pathlib.Path) -> Mapping[str, pathlib.Path]:
    """The file of each tensor of a folder: the only one, or as an index says."""
    index = folder / INDEX
    if not index.is_file():
        found = sorted(folder.glob("*.safetensors"))
        if len(found) == 1:
            with open_safetensors(found[0]) as opened:
                return dict.fromkeys(opened.keys(), found[0])
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        got = pickles[0] if pickles else f"{len(found)} files of safetensors and no index"
        remedy = CONVERT if pickles else "take the folder as save_pretrained(..., safe_serialization=True) writes it"
        raise errors.refuse("pretrained", f"{folder} with {got}", "a folder with safetensors", remedy)
    shards = folders.read_json(index)
    places = shards.get("weight_map") if isinstance(shards, dict) else None
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise errors.refuse(str(index), "no weight_map of names", "one as transformers writes it")
    for place in sorted(set(places.values())):
        if place != pathlib.PurePath(place).name or "\\" in place or place == "..":
            raise errors.refuse(str(index), f"the file {place!r}", "a name of a file in the same folder")
        if not (folder / place).is_file():
            raise errors.refuse(str(index), f"{place}, which is not there", "all of its files", "fetch it too")
        with open_safetensors(folder / place) as opened:
            missing = {name for name in places if places[name] == place} - set(opened.keys())
        if missing:
            raise errors.refuse(str(folder / place), f"no {min(missing)}", "every tensor that the index names")
    return {name: folder / place for name, place in places.items()}


def _ledger(places: Mapping[str, pathlib.Path]) -> str:
    """The ledger of a run that wrote these tensors, which are then no public ones; empty: none did."""
    for path in sorted(set(places.values())):
        with open_safetensors(path) as opened:
            if (ledger := (opened.metadata() or {}).get(KEY)) is not None:
                values = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
                return with_parameters(ledger, values, path.name, exported=True)
    return ""


def _read_tensor(path: pathlib.Path, name: str) -> np.ndarray:
    """One tensor of a file, in blocks, with the file closed after each: its pages do not stay in memory.

    It is aligned as JAX asks for, which then takes it over on a CPU without a copy.
    """

    def read(first: int, last: int) -> np.ndarray:
        with open_safetensors(path) as opened:
            return opened.get_slice(name)[first:last]

    with open_safetensors(path) as opened:
        shape = opened.get_slice(name).get_shape()
        if math.prod(shape) <= BLOCK:
            return opened.get_tensor(name)
    kind = read(0, 1).dtype
    size, rows = math.prod(shape) * kind.itemsize, -(-BLOCK * shape[0] // math.prod(shape))
    room = np.empty(size + ALIGNED, np.uint8)
    value = room[-room.ctypes.data % ALIGNED :][:size].view(kind).reshape(shape)
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        value[first:last] = read(first, last)
    return value


def _values(
    folder: pathlib.Path,
    places: Mapping[str, pathlib.Path],
    network: LanguageModel,
    wanted: Mapping[str, Any],
    dtype: Any,
) -> Iterator[tuple[str, jax.Array]]:
    """The values of a folder by own path, one after another, in this type.

    Raises: ConfigurationError for a tensor that no parameter takes, of another shape or kind.
    """
    names = {file_name(network, path, prefix=False): path for path in wanted}
    copies, table = dict[str, np.ndarray](), np.empty(0)
    for name, place in places.items():
        plain = name.removeprefix(LAYOUTS[network.layout].prefix)
        plain = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", plain))
        path = names.get(plain)
        if path is None:
            if _COPIES.fullmatch(plain) and network.tied:
                copies[name] = _read_tensor(place, name)
            elif not _UNUSED.fullmatch(plain) and not _HEADS.match(plain):
                near = errors.suggestion(plain, names)
                raise errors.refuse(str(folder), f"the tensor {name}", "those of the layout", near)
            continue
        value, shape, of_head = _read_tensor(place, name), tuple(wanted[path].shape), path.startswith("head")
        if value.dtype.kind not in "fV" or value.dtype.itemsize > 4:
            raise errors.refuse(str(folder), f"{name} of {value.dtype}", "float32, bfloat16 or float16")
        value = value.T if is_transposed(network, path) else value
        if value.shape == shape:
            table = value if path == "tokens/embedding" else table
            yield path, jnp.asarray(value, dtype)  # one after another: no second copy of all of them is made
        elif not (of_head and network.output == CLASSES):
            raise errors.refuse(str(folder), f"{name} of shape {value.shape}", f"{shape} by its {CONFIG}")
    for name, value in copies.items():
        if not np.array_equal(value, table):
            wanted_too = "equal to the table of tokens, as tie_word_embeddings says"
            raise errors.refuse(str(folder), name, wanted_too, f"say false in {CONFIG} if it is another")
