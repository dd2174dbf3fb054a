"""pfl-research: one model in place, clients one after another; its own privacy is on the updates of whole clients."""

import time

import numpy as np
import torch
import workloads
from contenders.torch_rounds import network, placed, tensors, wait
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch.nn import functional

ROUNDS = {"W1": 10, "W2": 5, "W3": 2, "cifar-images": 5, "cifar-images-client": 5}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self):
        self.ends = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        wait()
        self.ends.append(time.perf_counter())
        return False, Metrics()


def make(w):
    if w.private == "record" and not w.name.startswith(("W1", "W2")):
        raise SystemExit("clips no single records")
    x, y = tensors(w)
    datasets = [Dataset(raw_data=[x[i], y[i]], user_id=i) for i in range(w.clients)]
    module = with_dropout(network(w)) if w.images else network(w)

    def loss(inputs, targets, is_eval=False, **kwargs):
        return functional.cross_entropy(module(inputs), targets)

    @torch.no_grad()
    def metrics(inputs, targets, **kwargs):
        return {"loss": Weighted(functional.cross_entropy(module(inputs), targets).item(), 1)}

    module.loss, module.metrics = loss, metrics
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    sampler = get_user_sampler("random", list(range(w.clients)))
    data = FederatedDataset(lambda i: datasets[i], sampler)
    mechanism = GaussianMechanism(w.clip_norm, w.noise_multiplier)
    private = [] if w.private == "none" else [CentrallyAppliedPrivacyMechanism(mechanism)]
    epochs = w.steps * w.batch / w.records
    length = (
        {"local_num_epochs": int(epochs)} if epochs >= 1 else {"local_num_epochs": None, "local_num_steps": w.steps}
    )
    train = NNTrainHyperParams(local_learning_rate=w.rate, local_batch_size=w.batch, **length)
    rounds = ROUNDS.get(w.name, 3)
    np.random.seed(0)  # noqa: NPY002  (what its samplers use)

    def run():
        clock = Clock()
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=10**9,
                train_cohort_size=w.cohort,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=private),
            model=model,
            model_train_params=train,
            model_eval_params=NNEvalHyperParams(local_batch_size=10_000),
            callbacks=[clock],
        )
        return [1e3 * seconds for seconds in np.diff(clock.ends)][-rounds:]

    @torch.no_grad()
    def accuracy():
        module.eval()
        x, y = placed(*workloads.images()[2:], 255)
        hits = [(module(part).argmax(1) == labels).sum().item() for part, labels in zip(x.split(500), y.split(500))]
        module.train()
        return sum(hits) / len(y)

    return run, None, *([accuracy] if w.images else [])


def with_dropout(network):
    """The network with the dropout of its benchmark: 0.25 after the pool, 0.5 after the hidden layer."""
    parts = list(network)
    parts.insert(-1, torch.nn.Dropout(0.5))
    parts.insert(next(i for i, part in enumerate(parts) if isinstance(part, torch.nn.Flatten)), torch.nn.Dropout(0.25))
    return torch.nn.Sequential(*parts)
