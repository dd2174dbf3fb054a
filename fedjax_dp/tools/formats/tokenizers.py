"""Texts as ids by the tokenizer of a pretrained model, a `tokenizer.json`, which the library `tokenizers` reads.

The tokenizer belongs to the model and is public: nothing is learnt from the texts.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.files import check_file
from fedjax_dp.data.sequences import LONGEST, smallest
from fedjax_dp.data.targets import Vocabulary

ENDING = ".json"
PADDING = ("[PAD]", "<pad>", "<|pad|>")


class Tokenizer:
    """A `tokenizer.json` that cuts texts to `length` ids and pads them at the end.

    The file's own truncation and padding are not used; its special tokens are, and a cut text keeps the last of them.
    Padding is `pad_token_id` of the `config.json` in its folder, else the tokenizer's padding token, else the end of a
    text (`eos_token_id`), which may then occur inside of texts too.
    """

    def __init__(self, path: pathlib.Path, length: int, pairs: bool = False) -> None:
        errors.require_installed("tokenizers", "text", "for a tokenizer.json")
        import tokenizers  # optional

        check_file("vocabulary", path)
        self.path, self.length = path, length
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain ones
            got = f"{path}, which is no tokenizer ({' '.join(str(error).split())[:100]})"
            wanted = "a tokenizer.json, or a list of words"
            raise errors.refuse(
                "vocabulary", got, wanted, "AutoTokenizer.from_pretrained(...).save_pretrained writes one"
            ) from None
        least = max(self._tokenizer.num_special_tokens_to_add(pairs) + 1, 3)
        errors.require_integer("length", length, least, LONGEST)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(length)
        self.pad, self.may_be_inside = self._padding()
        self.vocabulary = Vocabulary(max(self._tokenizer.get_vocab_size(), self.pad + 1), pad=self.pad)

    def _padding(self) -> tuple[int, bool]:
        config = self.path.with_name("config.json")
        keys: Any = folders.read_json(config) if config.is_file() else {}
        keys = keys if isinstance(keys, dict) else {}
        for name, inside in (("pad_token_id", False), ("eos_token_id", True)):
            value = keys.get(name)
            value = value[0] if isinstance(value, list) and value else value
            if not inside and value is None:
                value = next((at for word in PADDING if (at := self._tokenizer.token_to_id(word)) is not None), None)
            if type(value) is int:
                return value, inside or value == keys.get("eos_token_id")
        raise errors.refuse(
            "vocabulary", f"{self.path} without padding", "a padding token", "add pad_token_id to config.json"
        )

    def rows(self, texts: Sequence[Any]) -> np.ndarray:
        """Ids of texts `(texts, length)`; of pairs of texts `(texts, 2, length)`, ids and token types.

        Raises: ConfigurationError for a text with the padding token inside of it.
        """
        encoded = self._tokenizer.encode_batch(list(texts))
        pairs = bool(texts) and not isinstance(texts[0], str)
        table = np.full((len(texts), 2, self.length), self.pad, np.int32)
        table[:, 1] = 0
        for number, (row, one) in enumerate(zip(table, encoded, strict=True)):
            if self.pad in one.ids and not self.may_be_inside:
                got = f"{json.dumps(texts[number])[:60]} with its token of padding"
                raise errors.refuse(f"text {number + 1}", got, "texts without it", "drop the text")
            row[:, : len(one.ids)] = one.ids, one.type_ids
        return smallest(table if pairs else table[:, 0], self.vocabulary.size)
