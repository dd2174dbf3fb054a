"""The rounds of `round_latency.py` in PyTorch: a loop over clients and steps, plain or with Opacus' ghost clipping."""

import copy
import importlib.util
import warnings

import numpy as np
import torch
from torch import nn


def network(name, shape):
    """The workload's model."""
    if name == "W1":
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 10))
    if name == "W2":
        return nn.Sequential(nn.Linear(shape[0], 1200), nn.ReLU(), nn.Linear(1200, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])), nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def contenders(name, w, x, y, start, ours, batch, rate):
    """Rounds by name, and how far Opacus' clipped gradient of one batch is from ours."""
    images = torch.tensor(x.reshape(w["clients"], w["records"], *w["shape"])).float() / 255
    labels = torch.tensor(y.reshape(w["clients"], -1)).long()
    found, gaps = {"torch_loop": plain_loop(name, w, images, labels, rate)}, {}
    if w["private"] and importlib.util.find_spec("opacus"):
        warnings.filterwarnings("ignore", module="(torch|opacus).*")
        found["opacus_ghost"] = ghost_loop(name, w, images, labels, rate)
        gaps["opacus_ghost"] = ghost_gap(name, w, start, ours, batch)
    return found, gaps


def averaged(w, model, images, labels, step):
    """A round: each client of a cohort starts from the model, takes its steps on batches, and updates are averaged."""
    generator = np.random.default_rng(0)

    def run():
        start = copy.deepcopy(model.state_dict())
        total = {key: torch.zeros_like(value) for key, value in start.items()}
        for client in generator.choice(w["clients"], w["cohort"], replace=False):
            model.load_state_dict(start)
            for _ in range(w["steps"]):
                rows = torch.from_numpy(generator.choice(w["records"], w["batch"], replace=False))
                step(images[client, rows], labels[client, rows])
            for key, value in model.state_dict().items():
                total[key] += (value - start[key]) / w["cohort"]
        model.load_state_dict({key: start[key] + total[key] for key in start})
        return 1

    return run


def plain_loop(name, w, images, labels, rate):
    """No privacy."""
    model, loss_of = network(name, w["shape"]), nn.CrossEntropyLoss()

    def step(x, y):
        model.zero_grad()
        loss_of(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad

    return averaged(w, model, images, labels, step)


def ghost(model, batch_size, rate=1.0):
    """The model, optimizer and criterion of Opacus' fast gradient clipping; clip norm 1, noise multiplier 1."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=rate), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=batch_size,
    )  # fmt: skip
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="mean"), "mean")
    return wrapped, optimizer, criterion


def ghost_loop(name, w, images, labels, rate):
    """Per-record clipping by ghost norms and Gaussian noise."""
    wrapped, optimizer, criterion = ghost(network(name, w["shape"]), w["batch"], rate)

    def step(x, y):
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return averaged(w, wrapped, images, labels, step)


def ghost_gap(name, w, start, ours, batch):
    """Largest relative difference of the clipped mean gradient of one batch, before noise, at the same parameters."""
    model = network(name, w["shape"])
    layers = [layer for layer in model if isinstance(layer, nn.Linear | nn.Conv2d)]
    flax = sorted(start, key=lambda key: (key.split("_")[0] == "Dense", int(key.split("_")[1])))
    with torch.no_grad():
        for layer, key in zip(layers, flax, strict=True):
            layer.weight.copy_(as_torch(np.asarray(start[key]["kernel"]), layer))
            layer.bias.copy_(torch.tensor(np.asarray(start[key]["bias"])))
    wrapped, _, criterion = ghost(model, w["batch"])
    images, labels = (torch.tensor(np.asarray(part)) for part in batch)
    criterion(wrapped(images), labels.long()).backward()
    gap, scale = 0.0, 0.0
    for layer, key in zip(layers, flax, strict=True):
        mine = as_torch(np.asarray(ours[key]["kernel"]), layer)
        gap = max(gap, float((layer.weight.grad / w["batch"] - mine).abs().max()))
        scale = max(scale, float(mine.abs().max()))
    return gap / scale


def as_torch(kernel, layer):
    """A Flax kernel in PyTorch's layout; the first dense layer after a convolution sees channels first there."""
    if kernel.ndim == 4:
        return torch.tensor(kernel.transpose(3, 2, 0, 1).copy())
    if kernel.shape[0] == 3136:
        kernel = kernel.reshape(7, 7, 64, -1).transpose(2, 0, 1, 3).reshape(3136, -1)
    return torch.tensor(kernel.T.copy())
