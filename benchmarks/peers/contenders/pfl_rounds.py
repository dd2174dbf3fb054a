"""pfl-research: one model in place, clients one after another; its own privacy is on the updates of whole clients."""

import time

import numpy as np
import torch
import workloads
from contenders.torch_rounds import network, tensors, wait
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

ROUNDS = {"W1": 10, "W2": 5, "W3": 2}


class Clock(TrainingProcessCallback):
    """When each round ended; `look(round)` is not part of the time."""

    def __init__(self, look=lambda number: None):
        self.look, self.ends, self.aside = look, [time.perf_counter()], 0.0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        wait()
        self.ends.append(time.perf_counter() - self.aside)
        self.look(central_iteration + 1)
        self.aside = time.perf_counter() - self.ends[-1]
        return False, Metrics()


def training(w, module, datasets, noise_multiplier, rounds, clock):
    """Federated averaging of `module` over `datasets`; a function that runs it."""

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
    mechanism = GaussianMechanism(w.clip_norm, noise_multiplier)
    private = [] if w.private == "none" else [CentrallyAppliedPrivacyMechanism(mechanism)]
    epochs = w.steps * w.batch / w.records
    length = (
        {"local_num_epochs": int(epochs)} if epochs >= 1 else {"local_num_epochs": None, "local_num_steps": w.steps}
    )
    train = NNTrainHyperParams(local_learning_rate=w.rate, local_batch_size=w.batch, **length)

    def run():
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
            callbacks=[clock()],
        )

    return run


def make(w):
    if w.private == "record" and not w.name.startswith(("W1", "W2")):
        raise SystemExit("clips no single records")
    x, y = tensors(w)
    datasets = [Dataset(raw_data=[x[i], y[i]], user_id=i) for i in range(w.clients)]
    rounds, clocks = ROUNDS.get(w.name, 3), []

    def clock():
        clocks.append(Clock())
        return clocks[-1]

    train = training(w, network(w), datasets, workloads.NOISE_MULTIPLIER, rounds, clock)
    np.random.seed(0)  # noqa: NPY002  (what its samplers use)

    def run():
        train()
        return [1e3 * seconds for seconds in np.diff(clocks.pop().ends)][-rounds:]

    return run, None
