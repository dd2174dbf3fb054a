"""Checkpoints are read to the numbers that were written, and hostile ones are refused in one line."""

import json
import os
import pathlib
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.models import freeze, mlp, read_start
from fedjax_dp.models.origins import draw_seed

GIVEN = pathlib.Path(os.environ.get("FEDJAX_DP_DATA", "nowhere")) / "formats"


def safetensors(path, entries, more=b"", header=None):
    """A file written byte by byte: name -> array."""
    at, told, numbers = 0, {}, b""
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "float64": "F64"}
    for name, array in entries.items():
        data = np.ascontiguousarray(array).tobytes()
        told[name] = {
            "dtype": kinds[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        at, numbers = at + len(data), numbers + data
    words = json.dumps(told if header is None else header(told)).encode()
    path.write_bytes(struct.pack("<Q", len(words)) + words + numbers + more)
    return path


def arrays():
    rng = np.random.default_rng(0)
    return {
        "Dense_0/kernel": rng.normal(size=(6, 8)).astype(np.float32),
        "Dense_0/bias": rng.normal(size=8).astype(np.float16),
        "Dense_1/kernel": rng.normal(size=(8, 4)).astype(ml_dtypes.bfloat16),
        "Dense_1/bias": np.zeros(4),
    }


def nested(named):
    found = {}
    for name, value in named.items():
        layer, leaf = name.split("/")
        found.setdefault(layer, {})[leaf] = value
    return found


@pytest.mark.parametrize("kind", ["safetensors", "npz", "orbax"])
def test_every_kind_of_checkpoint_is_read_to_what_was_written(tmp_path, kind):
    written, path = arrays(), tmp_path / f"start.{kind}"
    if kind == "safetensors":
        safetensors(path, written)
    elif kind == "npz":
        written = {name: value.astype(np.float32) for name, value in written.items()}
        np.savez(path, **written)
    else:
        import orbax.checkpoint as orbax

        written = {name: value.astype(np.float32) for name, value in written.items()}
        with orbax.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, jax.tree.map(jnp.asarray, nested(written)))
    start = read_start(path, trained_on="drawings")
    assert len(start.origin.sha256) == 64
    assert "drawings" in str(start.origin)
    made = freeze(mlp((6,), 4, (8,)), "head", start=start)
    params = made.init(jax.random.key(5))
    whole = made.whole(params)
    for name, value in written.items():
        layer, leaf = name.split("/")
        assert np.array_equal(whole[layer][leaf], value.astype(np.float32))


def test_names_and_layouts_of_others_are_mapped(tmp_path):
    theirs = {"fc.weight": np.arange(12, dtype=np.float32).reshape(4, 3), "fc.bias": np.ones(4, np.float32)}
    path = safetensors(tmp_path / "torch.safetensors", theirs)
    names = tmp_path / "names.toml"
    names.write_text('"Dense_0/kernel" = {name = "fc.weight", axes = [1, 0]}\n"Dense_0/bias" = "fc.bias"\n')
    start = read_start(path, names=names)
    assert np.array_equal(start.values["Dense_0/kernel"], theirs["fc.weight"].T)
    assert set(start.values) == {"Dense_0/kernel", "Dense_0/bias"}
    for told, wanted in (
        ({"Dense_0/kernel": "fc.wight"}, "did you mean fc.weight"),
        ({"Dense_0/kernel": {"name": "fc.weight", "axes": [0, 0]}}, "an order of 0 to 1"),
        ({"Dense_0/kernel": 3}, "axes = "),
    ):
        with pytest.raises(errors.ConfigurationError, match=wanted):
            read_start(path, names=told)


def broken(tmp_path):
    """Files that are refused, each by what is wrong with it."""
    ok = {"w": np.zeros((2, 2), np.float32)}

    def changed(**change):
        return lambda told: {"w": told["w"] | change}

    yield tmp_path / "gone.npz", "exists"
    for name, size, words in (
        ("long", 2**60, b"{}"),
        ("text", 4, b"nope"),
        ("deep", 200_000, b"[" * 200_000),
        ("list", 2, b"[]"),
    ):
        (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", size) + words)
        yield tmp_path / f"{name}.safetensors", "none of these or damaged"
    (tmp_path / "empty.safetensors").touch()
    yield tmp_path / "empty.safetensors", "none of these or damaged"
    for name, change in {
        "type": {"dtype": "F8"},
        "shape": {"shape": [-2, -2]},
        "sides": {"shape": [2**40, 2**40]},
        "huge": {"shape": [2**39, 2**39]},
        "offsets": {"data_offsets": [0, 4000]},
        "gap": {"data_offsets": [8, 24]},
        "words": {"data_offsets": "0, 16"},
        "less": {"shape": [2, 1], "data_offsets": [0, 8]},
    }.items():
        yield safetensors(tmp_path / f"{name}.safetensors", ok, header=changed(**change)), "must be"
    yield safetensors(tmp_path / "more.safetensors", ok, more=b"x"), "none of these or damaged"
    np.savez(tmp_path / "pickled.npz", w=np.array([{}], object))
    yield tmp_path / "pickled.npz", "plain arrays"
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04 and then nothing")
    yield tmp_path / "zip.npz", "readable"
    (tmp_path / "folder").mkdir()
    yield tmp_path / "folder", "a folder without a checkpoint; name a file"
    safetensors(tmp_path / "folder" / "model.safetensors", ok)
    yield tmp_path / "folder", "name the file: .*folder/model.safetensors"
    (tmp_path / "zip.bin").write_bytes(b"PK\x03\x04 and then nothing")
    yield tmp_path / "zip.bin", "no archive of arrays; pickles are not read"
    (tmp_path / "old.pt").write_bytes(b"\x80\x02}q\x00.")
    yield tmp_path / "old.pt", "pickles are not read"


def test_hostile_checkpoints_are_refused_in_one_line(tmp_path):
    for path, told in broken(tmp_path):
        with pytest.raises(errors.ConfigurationError, match=told) as caught:
            read_start(path)
        assert "\n" not in str(caught.value), path


@pytest.mark.skipif(not GIVEN.is_dir(), reason="no folder formats in $FEDJAX_DP_DATA")
def test_the_given_checkpoints_hold_what_is_expected():
    wanted = json.loads((GIVEN / "expected.json").read_text())
    for file in ("tiny.npz", "tiny.safetensors"):
        told = {name: one for name, one in wanted[f"checkpoint/{file}"].items() if isinstance(one, dict)}
        found = read_start(GIVEN / "checkpoint" / file).values
        assert set(found) == set(told)
        for name, one in told.items():
            assert found[name].shape == tuple(one["shape"])
            np.testing.assert_array_equal(np.asarray(found[name], float).ravel(), one["values"])
    for file in ("pickled.npz", "short.safetensors", "header.safetensors"):
        refusal(read_start, GIVEN / "bad" / file)


def test_the_guarantee_names_the_start_and_claims_nothing_for_one_of_the_clients_own(tmp_path):
    from helpers import ragged_data

    data = ragged_data((5, 8, 3, 6), (6,), 4, seed=1)  # other numbers than those of the start
    path = safetensors(tmp_path / "start.safetensors", arrays())
    given = {"clip_norm": 1.0, "batch_size": 2, "cohort_size": 3, "learning_rate": 0.1, "local_steps": 2}
    algorithm = fdp.dpnfl(**given, noise_multiplier=1.0)

    def promise(**said):
        made = freeze(mlp((6,), 4, (8,)), "head", start=read_start(path, **said))
        return fdp.guarantee(algorithm, data, rounds=2, delta=1e-3, model=made)

    drawn = draw_seed(0, freeze(mlp((6,), 4, (8,)), "head", start=read_start(path)))  # no noise of another phase
    whole = fdp.guarantee(algorithm, data, rounds=2, delta=1e-3, seed=drawn)
    named = promise(trained_on="drawings of others")
    assert named.epsilon == whole.epsilon
    told = [line for line in named.assumptions if "start.safetensors" in line]
    assert len(told) == 1
    assert all(word in told[0] for word in ("sha256", "drawings of others", "public"))
    own = promise(public=False)
    assert np.isinf(own.epsilon)
    assert "records of these clients" in str(own)
    made = freeze(mlp((6,), 4, (8,)), "head", start=read_start(path, public=False))
    assert "records of these clients" in refusal(
        fdp.calibrate, algorithm, data, rounds=2, epsilon=1.0, delta=1e-3, model=made
    )
