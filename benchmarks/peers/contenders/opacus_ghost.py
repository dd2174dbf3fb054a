"""PyTorch with Opacus' ghost clipping: norms of single records without their gradients; a loop over clients."""

import warnings

import torch
import workloads
from contenders.torch_rounds import averaged, layers_of, learned, network, placed, put
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

warnings.filterwarnings("ignore", module="(torch|opacus).*")


def private(w, rate):
    """The model, optimizer and criterion of Opacus' fast gradient clipping."""
    model = network(w, channels_first=True)
    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=w.clip_norm, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=rate),
        noise_multiplier=workloads.NOISE_MULTIPLIER,
        max_grad_norm=w.clip_norm,
        expected_batch_size=w.batch,
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="mean"), "mean")
    return wrapped, optimizer, criterion


def make(w):
    if w.private != "record":
        raise SystemExit("for record-level privacy only")
    wrapped, optimizer, criterion = private(w, w.rate)

    def step(x, y):
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    def gradient(weights, x, y):
        model, _, criterion = private(w, 1.0)
        put(w, model, weights)
        x, y = placed(x, y)
        criterion(model(x), y).backward()
        return layers_of(w, [(layer.weight.grad / w.batch, layer.bias.grad / w.batch) for layer in learned(model)])

    return averaged(w, wrapped, step), gradient
