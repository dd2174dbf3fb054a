"""Pretrained models compute what their makers' code computes, from files as they are, and refuse what they cannot."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick, refusal
from safetensors.numpy import load_file, save_file

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.models import freeze, pretrained
from fedjax_dp.models.adapters import adapter_files, merged_files
from fedjax_dp.models.networks import by_path
from fedjax_dp.tasks import TokenCrossEntropy

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "pretrained.json").read_text())
LAYOUTS = {case["name"]: case for case in GOLDEN["layouts"]}
TASKS = {"classify": "classes", "causal": "sequence"}
SCORED = ("bert_classify", "roberta_classify", "gpt2_classify", "llama_classify")


def filled(tensors):
    """Tensors by the rule `fill` of the golden file."""
    result = {}
    for number, (name, shape) in enumerate(tensors, 1):
        place = np.arange(1, int(np.prod(shape)) + 1, dtype=object)
        unit = (7 * number * place**2 + (31 * number**2 + 17) * place + 1009 * number) % 65521
        flat, scaling = len(shape) == 1, name.endswith(("weight", "gamma"))
        centre = 1.0 if flat and scaling else 0.0
        scale = (0.2 if scaling else 0.1) if flat else 0.2 if "lora_" in name else 0.3
        values = centre + scale * (2 * unit.astype(float) / 65521 - 1)
        result[name] = values.astype(np.float32).reshape(shape)
    return result


def write_folder(folder, case, **changed):
    """The folder of a case; `changed` are keys of its config."""
    folder.mkdir(exist_ok=True)
    tensors = filled(case["tensors"])
    table = next(value for name, value in tensors.items() if value.shape == (31, 16) and not name.startswith("lm_head"))
    for name in case["ignored"]:
        tensors[name] = table if name.endswith(("decoder.weight", "lm_head.weight")) else np.zeros(3, np.float32)
    config = {key: value for key, value in (case["config"] | changed).items() if value != "left out"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def inputs_of(case):
    ids = np.array(case["inputs"]["input_ids"], np.int32)
    types_of = case["inputs"].get("token_type_ids")
    return ids if types_of is None else np.stack([ids, np.array(types_of, np.int32)], 1)


def model_of(folder, case, **options):
    classes = case["config"].get("num_labels", 31)
    like = types.SimpleNamespace(record_shape=inputs_of(case).shape[1:], classes=classes)
    return pretrained(folder, like, task=TASKS.get(case["task"], case["task"]), **options)


def scores_of(model, ids):
    params = model.init(jax.random.key(0))
    return np.stack([np.asarray(model.scores(params, x)) for x in ids])


@pytest.mark.parametrize("name", quick(LAYOUTS, SCORED))
def test_scores_are_those_of_transformers(tmp_path, name):
    case = LAYOUTS[name]
    got = scores_of(model_of(write_folder(tmp_path / name, case), case), inputs_of(case))
    want = np.array(case["expected"].get("logits", case["expected"].get("last_hidden_state")))
    if got.ndim == 3:
        seen = np.array(case["inputs"].get("attention_mask", np.ones(got.shape[:2])), bool)
        got, want = got[seen], want[seen]
    np.testing.assert_allclose(got, want, atol=5e-6)


@pytest.mark.parametrize("name", quick(SCORED, ["gpt2_classify"]))
def test_padding_at_the_end_changes_nothing(tmp_path, name):
    case = LAYOUTS[name]
    folder, ids = write_folder(tmp_path / name, case), inputs_of(case)
    pad = case["config"]["pad_token_id"]
    longer = np.pad(ids, ((0, 0), (0, 3)), constant_values=pad)
    for pool in (None, "mean"):
        like = types.SimpleNamespace(record_shape=(ids.shape[1] + 3,), classes=case["config"]["num_labels"])
        wide = pretrained(folder, like, pool=pool)
        np.testing.assert_allclose(
            scores_of(wide, longer), scores_of(model_of(folder, case, pool=pool), ids), atol=2e-6
        )


@pytest.mark.slow
@pytest.mark.parametrize("adapter", GOLDEN["adapters"], ids=lambda case: case["name"])
def test_adapters_are_those_of_peft(tmp_path, adapter):
    case, config, expected = LAYOUTS[adapter["base"]], adapter["adapter_config"], adapter["expected"]
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = filled(adapter["tensors"])
    save_file(tensors, folder / "adapter_model.safetensors")
    heads = {"bert_classify": "head,", "roberta_classify": "head,head_dense,"}.get(adapter["base"], "")
    base = model_of(write_folder(tmp_path / "base", case), case)
    model = freeze(base, heads + ("ffa-lora" if "ffa" in adapter["name"] else "lora"), start=folder)
    labels = np.array(adapter["labels"], np.int32)
    if labels.ndim == 2:  # places without a target are not padding
        model = dataclasses.replace(model, loss_of=TokenCrossEntropy(pad=-100))
    params, ids = model.init(jax.random.key(0)), inputs_of(case)
    np.testing.assert_allclose(scores_of(model, ids), expected["logits"], atol=5e-6)
    mask = np.ones(len(ids), bool)
    batch = gradients.clipped_sum(model, params, ids, jnp.asarray(labels), mask, expected["clip_norm"])
    np.testing.assert_allclose(batch.losses, expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(batch.norms, expected["gradient_norms"], rtol=1e-5)
    sums = adapter_files(model, batch.total, "base")[0]
    found = {name: float(np.linalg.norm(sums[name])) for name in expected["clipped_sum_norms"]}
    assert found == pytest.approx(expected["clipped_sum_norms"], rel=1e-5)
    files, text = adapter_files(model, params, "base")
    assert files.keys() == tensors.keys()
    assert all(np.array_equal(files[name], tensors[name]) for name in files)
    written = json.loads(text)
    for key in ("r", "lora_alpha", "target_modules", "fan_in_fan_out", "task_type", "bias"):
        assert written[key] == config[key], key


def test_a_merged_model_is_read_as_its_base_is(tmp_path):
    case = LAYOUTS["roberta_classify"]
    base = write_folder(tmp_path / "base", case)
    model = freeze(model_of(base, case), "head,lora", targets="attention", rank=2, alpha=4.0)
    params = jax.tree.map(lambda leaf: leaf + 0.1, model.init(jax.random.key(0)))
    merged = shutil.copytree(base, tmp_path / "merged")
    tensors = merged_files(model, model.whole(params))
    assert tensors.keys() == load_file(base / "model.safetensors").keys()
    save_file(tensors, merged / "model.safetensors")
    want = np.stack([model.scores(params, x) for x in inputs_of(case)])
    np.testing.assert_allclose(scores_of(model_of(merged, case), inputs_of(case)), want, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_masked", "roberta_masked"])
def test_masked_tokens_are_learnt_where_targets_are(tmp_path, name):
    case = LAYOUTS[name]
    model, ids = model_of(write_folder(tmp_path, case), case), inputs_of(case)
    params, pad = model.init(jax.random.key(0)), case["config"]["pad_token_id"]
    targets = np.full(ids.shape, pad, np.int32)
    targets[0, [1, 3]] = 7, 11
    logits = np.asarray(model.scores(params, ids[0]), float)
    surprise = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), targets[0]]
    assert model.loss(params, ids[0], targets[0]) == pytest.approx(surprise[[1, 3]].mean(), rel=1e-5)
    gradients_of_none = jax.grad(model.loss)(params, ids[1], targets[1])
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients_of_none))


def test_shards_are_one_model(tmp_path):
    case = LAYOUTS["bert_classify"]
    whole = write_folder(tmp_path / "whole", case)
    folder = shutil.copytree(whole, tmp_path / "shards")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{at % 2}.safetensors" for at, name in enumerate(tensors)}
    for place in set(places.values()):
        save_file({name: value for name, value in tensors.items() if places[name] == place}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    both = [scores_of(model_of(one, case), inputs_of(case)) for one in (whole, folder)]
    assert np.array_equal(*both)
    for place in ("../whole/model.safetensors", "sub/model-0.safetensors", ".."):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {**places, "x": place}}))
        assert "a name of a file in the same folder" in refusal(model_of, folder, case)
    (folder / "model-1.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert "model-1.safetensors, which is not there" in refusal(model_of, folder, case)


def test_narrow_files_are_widened(tmp_path):
    case = LAYOUTS["llama_tied"]
    folder = write_folder(tmp_path, case)
    want = scores_of(model_of(folder, case), inputs_of(case))
    tensors = load_file(folder / "model.safetensors")
    for kind in (jnp.bfloat16, np.float16):
        save_file({name: value.astype(kind) for name, value in tensors.items()}, folder / "model.safetensors")
        model = model_of(folder, case)
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(model.init(jax.random.key(0)))} == {"float32"}
        np.testing.assert_allclose(scores_of(model, inputs_of(case)), want, atol=0.2)


@pytest.mark.slow
def test_bfloat16_is_stored_and_what_is_trained_is_float32(tmp_path):
    case = LAYOUTS["bert_classify"]
    folder = write_folder(tmp_path, case)
    model = freeze(model_of(folder, case, dtype=jnp.bfloat16), "head,lora", targets="attention", rank=2)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(model.frozen.values)} == {"bfloat16"}
    params, ids = model.init(jax.random.key(0)), inputs_of(case)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
    np.testing.assert_allclose(scores_of(model, ids), case["expected"]["logits"], atol=0.05)
    batch = gradients.clipped_sum(model, params, ids, jnp.array([0, 1, 2]), np.ones(3, bool), 1.0)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(batch.total)} == {"float32"}
    assert all(value.dtype == np.float32 for value in merged_files(model, model.whole(params)).values())


def test_a_head_of_other_classes_begins_at_random(tmp_path):
    case = LAYOUTS["bert_classify"]
    folder = write_folder(tmp_path, case)
    like = types.SimpleNamespace(record_shape=(7,), classes=5)
    model = pretrained(folder, like)
    one, other = (by_path(model.init(jax.random.key(seed))) for seed in (0, 1))
    assert one["head/kernel"].shape == (16, 5)
    assert not np.array_equal(one["head/kernel"], other["head/kernel"])
    assert np.array_equal(one["pooler/kernel"], other["pooler/kernel"])
    trained = freeze(model, "head,lora", targets="attention")
    assert [origin.name for origin in trained.origins] == [folder.name]
    assert np.array_equal(trained.frozen.values["pooler/kernel"], one["pooler/kernel"])


def test_the_head_of_a_tied_model_is_refused(tmp_path):
    case = LAYOUTS["gpt2_causal"]
    model = model_of(write_folder(tmp_path, case), case)
    assert "name it by a pattern: tokens/embedding" in refusal(freeze, model, "head,lora")
    assert "tokens/embedding" in freeze(model, "tokens/**").adaptation.trained


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "mistral"}, "must be one of bert, roberta, gpt2, llama"),
        ({"model_type": "left out"}, "must be one of bert, roberta, gpt2, llama"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"position_embedding_type": "relative_key"}, 'position_embedding_type "relative_key"'),
        ({"is_decoder": True}, "is_decoder true"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "auto_map"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"num_attention_heads": 3}, "a multiple of the heads"),
        ({"hidden_size": -16}, "hidden_size -16"),
        ({"hidden_size": True}, "hidden_size True"),
        ({"vocab_size": "left out"}, "vocab_size None"),
        ({"pad_token_id": 31}, "pad_token_id 31"),
        ({"layer_norm_eps": 0}, "layer_norm_eps 0"),
        ({"max_position_embeddings": 5}, "3 to 5"),
        ({"num_hidden_layers": 3}, "no tensor bert.encoder.layer.2"),
        ({"num_hidden_layers": 1}, "the tensor bert.encoder.layer.1"),
        ({"intermediate_size": 20}, "of shape"),
    ],
)
def test_configs_that_are_not_computed_are_refused(tmp_path, changed, words):
    case = LAYOUTS["bert_classify"]
    folder = write_folder(tmp_path, case, **changed)
    text = refusal(model_of, folder, case)
    assert words in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("llama_causal", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ("llama_causal", {"sliding_window": 4}, "sliding_window 4"),
        ("llama_causal", {"num_key_value_heads": 3}, "a multiple of the heads of keys"),
        (
            "llama_tied",
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}},
            "low_freq_factor",
        ),
        ("gpt2_causal", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx true"),
        ("roberta_hidden", {"max_position_embeddings": 8}, "3 to 6"),  # positions begin at pad + 1
    ],
)
def test_configs_of_other_layouts_are_refused(tmp_path, name, changed, words):
    assert words in refusal(model_of, write_folder(tmp_path, LAYOUTS[name], **changed), LAYOUTS[name])


def test_rotary_settings_of_both_versions_are_read(tmp_path):
    case = LAYOUTS["llama_tied"]
    new = scores_of(model_of(write_folder(tmp_path, case), case), inputs_of(case))
    rope = dict(case["config"]["rope_parameters"])
    theta = rope.pop("rope_theta")
    old = write_folder(tmp_path, case, rope_parameters="left out", rope_theta=theta, rope_scaling=rope)
    assert np.array_equal(scores_of(model_of(old, case), inputs_of(case)), new)


def test_files_that_are_not_read_are_refused(tmp_path):
    case = LAYOUTS["gpt2_causal"]
    assert "nothing is downloaded" in refusal(model_of, tmp_path / "openai-community/gpt2", case)
    folder = write_folder(tmp_path / "folder", case)
    good = load_file(folder / "model.safetensors")
    for changed, words in (
        ({"more": np.zeros(3, np.float32)}, "the tensor more"),
        ({"wte.weight": good["wte.weight"].astype(np.int32)}, "wte.weight of int32"),
        ({"ln_f.bias": good["ln_f.bias"] * np.nan}, "NaN"),
        ({"lm_head.weight": good["wte.weight"] + 1}, "equal to the table of tokens"),
    ):
        save_file(good | changed, folder / "model.safetensors")
        assert words in refusal(model_of, folder, case)
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    assert "damaged" in refusal(model_of, folder, case)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickles are not read" in refusal(model_of, folder, case)
    (folder / "config.json").write_text("[1]")
    assert "a table of keys" in refusal(model_of, folder, case)
    (folder / "config.json").write_text("{")
    assert "readable JSON" in refusal(model_of, folder, case)


def test_means_of_factors_are_not_means_of_products_and_those_of_one_factor_are():
    """Equations of Sun et al. 2024, on three clients: `lora` averages both factors, `ffa-lora` B alone."""
    case, expected = GOLDEN["aggregation"]["inputs"], GOLDEN["aggregation"]["expected"]
    weights, rank = np.array(case["weights"]), len(case["B0"])
    network = fdp.model((lambda key: {"kernel": jnp.zeros((4, 3))}, lambda params, x: x @ params["kernel"]), (4,))

    def wholes(words, clients):
        """The network after the server's mean of the clients' parameters, and the mean of the clients' networks."""
        start = {"kernel": np.array(case["W"], np.float32)}
        model = freeze(network, words, start=start, start_data="nothing", rank=rank, alpha=case["scale"] * rank)
        if words == "ffa-lora":
            frozen = model.frozen._replace(values=model.frozen.values | {"kernel/lora_a": jnp.array(case["A0"])})
            model = model.with_device_records(frozen)
        mean = jax.tree.map(lambda *rows: np.tensordot(weights, np.array(rows, np.float32), 1), *clients)
        each = [np.asarray(model.whole(params)["kernel"]) for params in clients]
        return np.asarray(model.whole(mean)["kernel"]), np.tensordot(weights, each, 1)

    pairs = list(zip(case["A"], case["B"], strict=True))
    both = [{"kernel/lora_a": np.array(a), "kernel/lora_b": np.array(b)} for a, b in pairs]
    of_factors, of_products = wholes("lora", both)
    np.testing.assert_allclose(of_factors, expected["factors"]["whole"], atol=5e-6)
    np.testing.assert_allclose(of_products, expected["mean_of_products"], atol=5e-6)
    np.testing.assert_allclose(of_products - of_factors, expected["residual"], atol=5e-6)
    for whole in wholes("ffa-lora", [{"kernel/lora_b": np.array(b)} for _, b in pairs]):
        np.testing.assert_allclose(whole, expected["ffa"]["whole"], atol=5e-6)


MEMORY = """
import pathlib, sys, types
import jax, jax.numpy as jnp
from fedjax_dp.models import freeze, pretrained

status = pathlib.Path("/proc/self/status")
def kib(name):
    return int(next(line for line in status.read_text().splitlines() if line.startswith(name)).split()[1])

jnp.zeros(3).block_until_ready()
before = kib("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
like = types.SimpleNamespace(record_shape=(8,), classes=3)
model = freeze(pretrained(sys.argv[1], like), "head,lora", targets="attention")
model.init(jax.random.key(0))
print((kib("VmHWM") - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read on Linux")
def test_a_base_is_in_memory_once_while_it_is_read_and_frozen(tmp_path):
    """Half of it is one table, as in small models; the parts of JAX that this loads are some 60 MiB."""
    case = LAYOUTS["gpt2_classify"]
    large = {31: 100_000, 16: 512, 48: 1536, 64: 8192}
    shapes = {name: [large.get(size, size) for size in shape] for name, shape in case["tensors"]}
    tensors = {name: np.full(shape, 0.01, np.float32) for name, shape in shapes.items()}
    config = case["config"] | {"vocab_size": large[31], "n_embd": large[16], "n_inner": large[64]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    base = sum(tensor.nbytes for tensor in tensors.values())
    done = subprocess.run([sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True)
    assert base > 200 * 2**20
    assert int(done.stdout) < 1.25 * base + 64 * 2**20
