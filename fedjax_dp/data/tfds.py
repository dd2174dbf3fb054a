"""Any image classification data set that TensorFlow Datasets has prepared, read without TensorFlow."""

import os
import pathlib
import re
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import check_labels, damage_error, search_folders
from fedjax_dp.data.pictures import decode
from fedjax_dp.data.store import Dataset

BLOCK = 4096  # records that are read at once
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # number of channels -> Pillow's name


def image_classification(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """The data set NAME, NAME/CONFIG or either with :VERSION, from the folder `tfds`; images of bytes, labels int32.

    A single channel loses its axis, as in idx files. The test set is the split `test`, else `validation`.
    """
    path = _version_folder(name, search_folders(["tfds"], data_dir))
    try:
        import tensorflow_datasets
    except ImportError as error:
        got, wanted = f"not installed ({error.name})", f"installed for tfds:{name}"
        raise errors.refuse("tensorflow-datasets", got, wanted, 'pip install "fedjax-dp[tfds]"') from None
    try:
        builder = tensorflow_datasets.builder_from_directory(path)
    except Exception as error:  # any error of a library that reads a damaged folder
        raise damage_error(path, _first_line(error), "a prepared data set", "prepare it again") from None
    features = builder.info.features
    mode, classes = _check_features(name, features)
    splits = list(builder.info.splits)
    held_out = next((split for split in ("test", "validation") if split in splits), None)
    if "train" not in splits or held_out is None:
        raise errors.refuse(f"tfds:{name}", f"splits {', '.join(splits)}", "with a split train, and test or validation")

    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        skip = {"image": tensorflow_datasets.decode.SkipDecoding()}  # its own decoder takes twice as long
        try:
            source = builder.as_data_source(split=split, decoders=skip)
            starts = range(0, len(source), BLOCK)
            blocks = (source.__getitems__([*range(at, min(at + BLOCK, len(source)))]) for at in starts)
            records = [(record["image"], record["label"]) for block in blocks for record in block]
        except Exception as error:  # any error of a library that reads a damaged file
            raise damage_error(f"{path}, split {split}", _first_line(error), "readable", "prepare it again") from None
        images = decode(f"tfds:{name}, split {split}", (image for image, _ in records), mode)
        return images, np.array([label for _, label in records], np.int32)

    (x_train, y_train), (x_test, y_test) = read("train"), read(held_out)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise damage_error(f"tfds:{name}, split {held_out}", f"images {x_test.shape[1:]}", f"of {x_train.shape[1:]}")
    for split, y in (("train", y_train), (held_out, y_test)):
        check_labels(f"{path}, split {split}", y, classes)
    return Dataset(f"tfds:{name}", x_train, y_train, x_test, y_test, classes=classes, scale=1 / 255)


def _version_folder(name: str, folders: list[pathlib.Path]) -> pathlib.Path:
    """The folder of that or the newest version; it is the one that holds dataset_info.json."""
    plain, _, version = name.partition(":")
    if not re.fullmatch(r"\w+(/[\w.\-]+)?", plain) or not re.fullmatch(r"[\d.]*", version):
        raise errors.refuse("dataset", repr(f"tfds:{name}"), "tfds:NAME, tfds:NAME/CONFIG or either with :VERSION")
    versions = [
        info.parent
        for folder in folders
        for info in (folder / plain).glob("*/dataset_info.json")
        if re.fullmatch(r"\d+(\.\d+)*", info.parent.name) and version in ("", info.parent.name)
    ]
    if versions:
        return max(versions, key=lambda path: [int(part) for part in path.name.split(".")])
    remedy = (
        'where TensorFlow is installed run: python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('{name}', data_dir='{folders[0]}', file_format='array_record').download_and_prepare()\""
    )
    raise errors.refuse(f"dataset tfds:{name}", "nothing there", f"prepared in {folders[0]}", remedy)


def _check_features(name: str, features: Any) -> tuple[str, int]:
    """Pillow's name for the channels of an image, and the number of classes."""
    kinds = {key: type(feature).__name__ for key, feature in dict(features).items()}
    if kinds.get("image") != "Image" or kinds.get("label") != "ClassLabel":
        shown = ", ".join(f"{key} ({kind})" for key, kind in kinds.items())
        raise errors.refuse(f"features of tfds:{name}", shown, "image (Image) and label (ClassLabel)")
    image = features["image"]
    if image.np_dtype != np.uint8 or image.shape[-1] not in MODES:
        got = f"{np.dtype(image.np_dtype).name} {image.shape}"
        raise errors.refuse(f"images of tfds:{name}", got, "bytes with 1, 3 or 4 channels")
    return MODES[image.shape[-1]], features["label"].num_classes


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
