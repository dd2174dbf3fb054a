"""Data sets that TensorFlow Datasets prepared."""

import io
import types

import numpy as np
import pytest
from helpers import refusal
from PIL import Image

from fedjax_dp import data
from fedjax_dp.data import tfds


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


# They stand in for features, whose classes are known by these names.
Image_, ClassLabel = (type(name, (types.SimpleNamespace,), {}) for name in ("Image", "ClassLabel"))


def prepare(folder, monkeypatch, images, labels, features=None, splits=("train", "test"), version="1.0.0"):
    """A folder that looks prepared, and a builder that hands out these images."""
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
    (folder / "tfds" / "toy" / version).mkdir(parents=True)
    (folder / "tfds" / "toy" / version / "dataset_info.json").write_text("{}")
    channels = images[0].shape[2] if images[0].ndim == 3 else 1
    features = features or {
        "image": Image_(shape=(None, None, channels), np_dtype=np.uint8),
        "label": ClassLabel(num_classes=3),
    }
    records = [{"image": png(image), "label": label} for image, label in zip(images, labels)]

    class Source(list):
        def __getitems__(self, places):
            return [self[place] for place in places]

    builder = types.SimpleNamespace(
        info=types.SimpleNamespace(features=features, splits=dict.fromkeys(splits)),
        as_data_source=lambda split, decoders: Source(records),
    )
    monkeypatch.setattr(tensorflow_datasets, "builder_from_directory", lambda path: builder)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 4)])
def test_tfds_images_are_decoded_exactly(folder, monkeypatch, shape):
    images = list(np.random.default_rng(0).integers(0, 256, (7, *shape), np.uint8))
    monkeypatch.setattr(tfds, "BLOCK", 3)
    prepare(folder, monkeypatch, images, [0, 1, 2, 0, 1, 2, 0])
    got = data.load("tfds:toy", folder)
    np.testing.assert_array_equal(got.x_train, np.stack(images))
    assert (got.y_train.tolist(), got.classes, got.name, got.scale) == ([0, 1, 2, 0, 1, 2, 0], 3, "tfds:toy", 1 / 255)
    assert data.load("tfds:toy:1.0.0", folder).name == "tfds:toy:1.0.0"
    refusal(data.load, "tfds:toy:2.0.0", folder)


def test_newest_version_is_taken_by_number(folder):
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        (folder / "tfds" / "toy" / version).mkdir(parents=True)
        (folder / "tfds" / "toy" / version / "dataset_info.json").write_text("{}")
    assert tfds._version_folder("toy", [folder / "tfds"]).name == "1.10.0"


def test_unprepared_tfds_says_how_to_prepare_it(folder):
    message = refusal(data.load, "tfds:cifar10", folder)
    assert "where TensorFlow is installed run" in message
    assert f"tfds.builder('cifar10', data_dir='{folder / 'tfds'}', file_format='array_record')" in message
    for name in ("../mnist", "a/b/c", "a b", "a:1/../2"):
        assert "tfds:NAME" in refusal(data.load, f"tfds:{name}", folder)


GRAY, DEEP = np.zeros((2, 2), np.uint8), Image_(shape=(2, 2, 1), np_dtype=np.uint16)


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        ([GRAY, np.zeros((2, 3), np.uint8)], {}, "must be (2, 2), as the first, got (2, 3)"),
        ([GRAY] * 2, {"features": {"image": ClassLabel(num_classes=2)}}, "image (Image) and label (ClassLabel)"),
        ([GRAY] * 2, {"features": {"text": Image_(), "label": ClassLabel()}}, "got text (Image), label (ClassLabel)"),
        ([GRAY] * 2, {"features": {"image": DEEP, "label": ClassLabel()}}, "uint16"),
        ([GRAY] * 2, {"splits": ("train",)}, "splits train"),
    ],
)
def test_tfds_that_is_no_image_classification_is_refused(folder, monkeypatch, images, options, words):
    prepare(folder, monkeypatch, images, [0, 1], **options)
    message = refusal(data.load, "tfds:toy", folder)
    assert words in message
    assert "tfds:toy" in message


def test_damaged_tfds_folder_is_refused_by_name(folder):
    pytest.importorskip("tensorflow_datasets")
    (folder / "tfds" / "toy" / "1.0.0").mkdir(parents=True)
    (folder / "tfds" / "toy" / "1.0.0" / "dataset_info.json").write_text("{")
    assert str(folder / "tfds" / "toy" / "1.0.0") in refusal(data.load, "tfds:toy", folder)


def test_tfds_without_its_library_says_what_to_install(folder, monkeypatch):
    prepare(folder, monkeypatch, [GRAY], [0])
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_datasets", None)
    assert 'pip install "fedjax-dp[tfds]"' in refusal(data.load, "tfds:toy", folder)


@pytest.mark.exhaustive  # CI: records of the same format, tests/data/test_tf_example.py
def test_prepared_mnist_equals_the_idx_files_as_a_multiset(real):
    where = real("tfds", "mnist", "3.0.1", "dataset_info.json")
    one, other = data.load("tfds:mnist", where), data.load("mnist", where)
    for side in ("train", "test"):
        rows = [
            np.sort(np.array([hash(x.tobytes() + bytes([y])) for x, y in zip(getattr(got, f"x_{side}"), labels)]))
            for got, labels in ((one, getattr(one, f"y_{side}")), (other, getattr(other, f"y_{side}")))
        ]
        np.testing.assert_array_equal(*rows)
