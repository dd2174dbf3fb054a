"""Models: what the simulator needs of one, and those of the papers."""

from collections.abc import Callable

from fedjax_dp.gradients import FeatureModel, Model, PartlyFrozenModel
from fedjax_dp.models.dense import logistic_regression, mlp, usual_model
from fedjax_dp.models.freezing import freeze
from fedjax_dp.models.language_models import pretrained
from fedjax_dp.models.model import NetworkModel, explain_gradients, mean_loss, model, task_of
from fedjax_dp.models.networks import Linen
from fedjax_dp.models.origins import Origin
from fedjax_dp.models.starts import Start, read_start
from fedjax_dp.models.text import char_lstm, lstm, random_embedding, word_lstm
from fedjax_dp.models.transformers import gpt, vit
from fedjax_dp.models.vision import cnn, group_norm_cnn, lenet, simple_cnn, tutorial_cnn
from fedjax_dp.tasks import cross_entropy

__all__ = [
    "ARCHITECTURES",
    "FeatureModel",
    "Linen",
    "Model",
    "NetworkModel",
    "Origin",
    "PartlyFrozenModel",
    "Start",
    "char_lstm",
    "cnn",
    "cross_entropy",
    "explain_gradients",
    "freeze",
    "gpt",
    "group_norm_cnn",
    "lenet",
    "logistic_regression",
    "lstm",
    "mean_loss",
    "mlp",
    "model",
    "pretrained",
    "random_embedding",
    "read_start",
    "simple_cnn",
    "task_of",
    "tutorial_cnn",
    "usual_model",
    "vit",
    "word_lstm",
]

ARCHITECTURES: dict[str, Callable[..., NetworkModel]] = {
    "logistic": logistic_regression,
    "mlp": mlp,
    "cnn": cnn,
    "group_norm_cnn": group_norm_cnn,
    "tutorial_cnn": tutorial_cnn,
    "lenet": lenet,
    "simple_cnn": simple_cnn,
    "lstm": lstm,
    "vit": vit,
    "gpt": gpt,
    "word_lstm": word_lstm,
    "char_lstm": char_lstm,
}
