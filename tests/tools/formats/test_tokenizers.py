"""Texts become the ids of a model's own tokenizer; a run tunes a pretrained model on them, and its adapter goes on."""

import json
import pathlib
import resource

import numpy as np
import pandas as pd
import pytest
from helpers import refusal
from safetensors import safe_open
from safetensors.numpy import save_file

import fedjax_dp as fdp
from fedjax_dp.data import load
from fedjax_dp.tools import cli
from fedjax_dp.tools.formats.tokenizers import Tokenizer

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "pretrained.json").read_text())
TOKENIZERS = GOLDEN["tokenizers"]
TEXTS = ["The cats sat on the mat.", "I'm so HAPPY, @user!", "unbelievable zebra nowhere", "running now 50%", ""]


def write_tokenizer(folder, name="wordpiece", **config):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZERS[name]["tokenizer_json"]))
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


@pytest.fixture
def base(tmp_path):
    """A folder of a small bert, random, with its tokenizer."""
    write_tokenizer(tmp_path / "base")
    case = next(case for case in GOLDEN["layouts"] if case["name"] == "bert_hidden")
    config = case["config"] | {"vocab_size": 40}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)
    tensors = {name: random.normal(scale=0.2, size=shape).astype(np.float32) for name, shape in case["tensors"]}
    tensors["embeddings.word_embeddings.weight"] = random.normal(size=(40, 16)).astype(np.float32)
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    rows = [(f"user {row % 4}", row % 2, TEXTS[row % 4]) for row in range(32)]
    pd.DataFrame(rows, columns=["user", "good", "text"]).to_csv(tmp_path / "texts.csv", index=False)
    return tmp_path / "base"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_the_tokenizer(tmp_path, name):
    case = TOKENIZERS[name]
    path = write_tokenizer(tmp_path, name, pad_token_id=0)
    rows = Tokenizer(path, 40).rows(case["texts"])
    assert [row[: len(ids)].tolist() for row, ids in zip(rows, case["ids"])] == case["ids"]
    assert all(not row[len(ids) :].any() for row, ids in zip(rows, case["ids"]))
    if "length" in case:
        rows = Tokenizer(path, case["length"]).rows(case["texts"])
        assert rows.tolist() == [cut["ids"] for cut in case["cut_and_padded"]]


def test_the_settings_of_the_file_for_length_are_not_used(tmp_path):
    path = write_tokenizer(tmp_path)
    keys = json.loads(path.read_text())
    keys["padding"] = {
        "strategy": {"Fixed": 30},
        "direction": "Left",
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    keys["padding"]["pad_to_multiple_of"] = None
    keys["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    path.write_text(json.dumps(keys))
    assert Tokenizer(path, 12).rows(TEXTS[:1]).tolist() == [[2, 5, 6, 7, 8, 9, 5, 10, 12, 3, 0, 0]]


def test_pairs_have_types(tmp_path):
    rows = Tokenizer(write_tokenizer(tmp_path), 9, pairs=True).rows([("the cat", "sat on")])
    assert rows.tolist() == [[[5, 6, 8, 9, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0, 0]]]


def test_padding_follows_the_config_then_the_file_then_the_end_of_text(tmp_path):
    assert Tokenizer(write_tokenizer(tmp_path, pad_token_id=7), 8).pad == 7
    assert Tokenizer(write_tokenizer(tmp_path, model_type="bert"), 8).pad == 0
    path = write_tokenizer(tmp_path / "gpt2", "byte_bpe", eos_token_id=0)
    tokenizer = Tokenizer(path, 8)
    assert tokenizer.pad == 0
    assert tokenizer.rows(["<|endoftext|>the cat"])[0, 0] == 0  # it may stand inside of a text
    (tmp_path / "gpt2" / "config.json").write_text("{}")
    assert "a padding token" in refusal(Tokenizer, path, 8)


def test_what_no_tokenizer_can_be_is_refused(tmp_path):
    path = write_tokenizer(tmp_path)
    assert "length" in refusal(Tokenizer, path, 2)
    padded = Tokenizer(write_tokenizer(tmp_path / "padded", pad_token_id=6), 8)
    assert 'text 2 must be texts without it, got "the cat"' in refusal(padded.rows, ["on the mat", "the cat"])
    path.write_text("{}")
    assert "which is no tokenizer" in refusal(Tokenizer, path, 8)
    assert "must" in refusal(Tokenizer, tmp_path / "nowhere.json", 8)


def test_a_column_of_texts_is_read_by_it(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read = {"client_column": "user", "label_column": "good", "feature_columns": "text", "length": 8}
    data = load("csv:texts.csv", vocabulary="base/tokenizer.json", **read)
    assert (data.x_train.shape[1:], data.tokens, data.vocabulary.size, data.learnt) == ((8,), True, 40, ())
    assert "left out with a tokenizer" in refusal(
        load, "csv:texts.csv", vocabulary="base/tokenizer.json", vocabulary_size=9, **read
    )


DATA = {"--dataset": "csv:texts.csv", "--client-column": "user", "--label-column": "good", "--feature-columns": "text"}
TEXT = {"--length": "8", "--vocabulary": "base/tokenizer.json", "--model": "pretrained:base", "--pool": "mean"}
TERMS = {"--lora-targets": "attention", "--lora-rank": "2"}
REST = {"--algorithm": "dpnfl", "--rounds": "2", "--cohort-size": "2", "--local-steps": "2", "--batch-size": "2"}
REST |= {"--noise-multiplier": "4", "--delta": "1e-3", "--clip-norm": "1", "--trainable": "head,lora"}


def run(options):
    return cli.main(["run", "--quiet", *(word for pair in (DATA | TEXT | REST | options).items() for word in pair)])


@pytest.mark.slow
def test_a_run_tunes_a_model_and_its_adapter_goes_on(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(TERMS | {"--out": "first"}) == 0
    first = fdp.open_run("first")
    begins = next(line for line in first.guarantee.assumptions if line.startswith("training begins with base (sha256"))
    assert "trained on text that is treated as public" in begins
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, most[1]))  # of the weights, which are the largest file
    try:
        assert cli.main(["export", "--format", "peft", "first", "adapter"]) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert not (tmp_path / "adapter").exists()
    assert cli.main(["export", "--format", "peft", "first", "adapter"]) == 0
    for place in ("adapter", "nowhere/adapter"):
        assert cli.main(["export", "--format", "peft", "first", place]) == 2
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (written["r"], written["target_modules"]) == (2, ["query", "value"])
    assert str(first.guarantee) in (tmp_path / "adapter" / "PRIVACY.md").read_text()
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "np") as file:
        assert file.metadata()["format"] == "pt"  # which transformers before 5 asks for
    assert run({"--start": "adapter", "--out": "second"}) == 0
    second = fdp.open_run("second")
    assert second.guarantee.epsilon > first.guarantee.epsilon
    assert len(second.guarantee.phases) == 1
    assert second.guarantee.caveat is None
    assert cli.main(["export", "--format", "peft", "--merged", "second", "merged"]) == 0
    assert {"config.json", "model.safetensors", "tokenizer.json", "PRIVACY.md"} <= {
        file.name for file in (tmp_path / "merged").iterdir()
    }
    assert run(TERMS | {"--model": "pretrained:merged", "--out": "of merged"}) == 0
    of_merged = fdp.open_run("of merged").guarantee  # what a run wrote is no public start
    assert sum(of_merged.epsilons) > sum(second.guarantee.epsilons)
    assert len(of_merged.phases) == 2
    capsys.readouterr()
    assert run(TERMS | {"--start-private": "true", "--out": "third"}) == 0
    assert "no privacy" in str(fdp.open_run("third").guarantee)


def test_what_a_model_is_not_made_for_is_refused(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def error_of(**changes):
        assert run(TERMS | {f"--{name}": value for name, value in changes.items()} | {"--out": "x"}) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "nothing is downloaded" in error_of(model="pretrained:bert-base-uncased")
    assert "3 to 12 for this bert" in error_of(length="20")
    assert "must be one of first, mean" in error_of(pool="last")
    assert "left out unless model is pretrained" in error_of(model="lstm")
    assert "must be" in error_of(model="pretrained:")
