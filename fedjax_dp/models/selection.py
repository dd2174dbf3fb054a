"""Parameters of a model by name: patterns of paths, and the head."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax

from fedjax_dp import errors
from fedjax_dp.gradients import Model
from fedjax_dp.gradients.analysis import GradientPlan, plan_of
from fedjax_dp.gradients.outer_products import Product
from fedjax_dp.models.model import NetworkModel
from fedjax_dp.models.networks import by_path

HEAD = "head"


def tensors_named(what: str, words: str, model: Model) -> tuple[bool, ...]:
    """Whether each tensor of a model matches, in the order of `pytrees.ravel`.

    words  comma-separated patterns of parameter paths, or `head`, the layer of the last matrix product.
    Raises: ConfigurationError for a pattern that matches nothing.
    """
    shapes = by_path(jax.eval_shape(model.init, jax.random.key(0)))
    found: set[str] = set()
    for word in split_words(what, words):
        own = [name for name in shapes if name == word or name.startswith(f"{word}/")]
        if word != HEAD or own:
            found |= set(match_patterns(what, [word], shapes))
            continue
        if not isinstance(model, NetworkModel):
            raise errors.refuse(what, HEAD, "used with a network", f"name it by a pattern: there are {_few(shapes)}")
        base = model.base
        plan = plan_of(base, "scores", jax.eval_shape(base.init, jax.random.key(0)), (base.blank,))
        found |= set(head_of(what, plan, shapes))
    return tuple(name in found for name in shapes)


def split_words(what: str, text: str) -> list[str]:
    """Comma-separated words."""
    words = [word.strip() for word in text.split(",")]
    if "" in words:
        raise errors.refuse(what, repr(text), "words or patterns with commas between", "such as head or block_*/**")
    return words


def match_patterns(what: str, patterns: Sequence[str], names: Collection[str]) -> list[str]:
    """Names that match one of the patterns, or are below such a name, in order; each pattern must match a name."""
    found: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if matches(pattern, name)}
        if not hits:
            remedy = errors.suggestion(pattern, names, f"there are {_few(names)}")
            raise errors.refuse(what, f"{pattern!r}, which matches nothing", "patterns of parameter paths", remedy)
        found |= hits
    return [name for name in names if name in found]


def select_names(what: str, words: Iterable[str], plan: GradientPlan, shapes: Mapping[str, Any]) -> set[str]:
    """Names that match patterns, or are those of `head`."""
    return {
        name
        for word in words
        for name in (head_of(what, plan, shapes) if word == HEAD else match_patterns(what, [word], shapes))
    }


def head_of(what: str, plan: GradientPlan, shapes: Mapping[str, Any]) -> list[str]:
    """The layer of the last product with parameters: all names in the folder of its kernel."""
    if plan.features is None:
        raise errors.refuse(what, HEAD, "used where a product with parameters is last", "name it by a pattern")
    path = plan.features[0]
    last = next((weight for weight in plan.weights for use in weight.uses if use.path == path), None)
    if last is None:
        raise errors.refuse(what, HEAD, "used where the last product is with a kernel", "name it by a pattern")
    kernel = plan.names[min(last.leaves)]
    if not all(isinstance(use.outer_product.geometry, Product) for use in last.uses):
        remedy = f"name it by a pattern: {kernel}"
        raise errors.refuse(
            what, HEAD, f"used where the last product is not with {kernel}, the table of tokens", remedy
        )
    layer = kernel.rpartition("/")[0]
    return [name for name in shapes if name == kernel or (layer and name.startswith(f"{layer}/"))]


def _few(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:6]) + (", ..." if len(every) > 6 else "")


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches a name, or a name above it."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    meaning = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.fullmatch("".join(meaning.get(part, re.escape(part)) for part in parts) + "(/.*)?", name) is not None
