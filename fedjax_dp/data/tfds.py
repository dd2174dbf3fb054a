"""Any image classification data set that TensorFlow Datasets has prepared, read without TensorFlow."""

import io
import os
import pathlib
import re
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import check_labels, damaged, places
from fedjax_dp.data.store import Dataset

BLOCK = 4096  # records that are read at once
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # number of channels -> Pillow's name


def image_classification(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """The data set NAME, NAME/CONFIG or either with :VERSION, from the folder `tfds`; images of bytes, labels int32.

    A single channel loses its axis, as in idx files. The test set is the split `test`, else `validation`.
    """
    path = _prepared(name, places(["tfds"], data_dir))
    try:
        import tensorflow_datasets
        from PIL import Image
    except ImportError as error:
        raise errors.refuse(
            "tensorflow-datasets and pillow",
            f"not installed ({error.name})",
            f"installed for tfds:{name}",
            'pip install "fedjax-dp[tfds]"',
        ) from None
    try:
        builder = tensorflow_datasets.builder_from_directory(path)
    except Exception as error:  # any error of a library that reads a damaged folder
        raise damaged(path, _first_line(error), "a prepared data set", "prepare it again") from None
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
            images, labels = [], []
            for start in range(0, len(source), BLOCK):
                for record in source.__getitems__(list(range(start, min(start + BLOCK, len(source))))):
                    picture = Image.open(io.BytesIO(record["image"]))
                    images.append(np.asarray(picture if picture.mode == mode else picture.convert(mode)))
                    labels.append(record["label"])
        except Exception as error:  # any error of a library that reads a damaged file
            raise damaged(f"{path}, split {split}", _first_line(error), "readable", "prepare it again") from None
        return _stack(name, split, images), np.array(labels, np.int32)

    (x_train, y_train), (x_test, y_test) = read("train"), read(held_out)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise damaged(f"tfds:{name}, split {held_out}", f"images {x_test.shape[1:]}", f"of {x_train.shape[1:]}")
    for split, y in (("train", y_train), (held_out, y_test)):
        check_labels(f"{path}, split {split}", y, classes)
    return Dataset(f"tfds:{name}", x_train, y_train, x_test, y_test, classes=classes, scale=1 / 255)


def _prepared(name: str, folders: list[pathlib.Path]) -> pathlib.Path:
    """The folder of the asked or newest version; it is the one that holds dataset_info.json."""
    plain, _, version = name.partition(":")
    if not re.fullmatch(r"\w+(/[\w.\-]+)?", plain) or not re.fullmatch(r"[\d.]*", version):
        raise errors.refuse("dataset", repr(f"tfds:{name}"), "tfds:NAME, tfds:NAME/CONFIG or either with :VERSION")
    found = [
        info.parent
        for folder in folders
        for info in (folder / plain).glob("*/dataset_info.json")
        if re.fullmatch(r"\d+(\.\d+)*", info.parent.name) and version in ("", info.parent.name)
    ]
    if found:
        return max(found, key=lambda path: [int(part) for part in path.name.split(".")])
    raise errors.refuse(
        f"dataset tfds:{name}",
        "nothing there",
        f"prepared in {folders[0]}",
        'where TensorFlow is installed run: python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('{name}', data_dir='{folders[0]}', file_format='array_record').download_and_prepare()\"",
    )


def _check_features(name: str, features: Any) -> tuple[str, int]:
    """Pillow's name for the channels of an image, and the number of classes."""
    kinds = {key: type(feature).__name__ for key, feature in dict(features).items()}
    if kinds.get("image") != "Image" or kinds.get("label") != "ClassLabel":
        told = ", ".join(f"{key} ({kind})" for key, kind in kinds.items())
        raise errors.refuse(f"features of tfds:{name}", told, "image (Image) and label (ClassLabel)")
    image = features["image"]
    if image.np_dtype != np.uint8 or image.shape[-1] not in MODES:
        told = f"{np.dtype(image.np_dtype).name} {image.shape}"
        raise errors.refuse(f"images of tfds:{name}", told, "bytes with 1, 3 or 4 channels")
    return MODES[image.shape[-1]], features["label"].num_classes


def _stack(name: str, split: str, images: list[np.ndarray]) -> np.ndarray:
    """`(records, height, width)` or `(records, height, width, channels)`."""
    if not images:
        raise errors.refuse(f"tfds:{name}, split {split}", "no record", "at least one record long")
    odd = next((place for place, image in enumerate(images) if image.shape != images[0].shape), None)
    if odd is not None:
        raise errors.refuse(
            f"images of tfds:{name}",
            f"{images[0].shape} and {images[odd].shape} in split {split}",
            "of one shape",
            "resize them, and give them as npz:PATH",
        )
    return np.stack(images)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
