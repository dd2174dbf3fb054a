"""Flower's simulation on Ray, FedAvg, one core a client; with record-level privacy Opacus' ghost clipping inside it."""

import functools
import os
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import numpy as np
import torch
import workloads
from contenders.torch_rounds import network, tensors
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

ROUNDS = {"W1": 6, "W2": 4}


@functools.cache
def held(name):
    """The records and the step of a worker process of Ray, made once."""
    w = workloads.WORKLOADS[name]
    torch.set_num_threads(1)
    if w.private == "record":
        from contenders.opacus_ghost import private

        model, optimizer, criterion = private(w, w.rate)
    else:
        model, criterion = network(w), torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), w.rate)
    return *tensors(w), model, optimizer, criterion


def client_app(name):
    app, w = ClientApp(), workloads.WORKLOADS[name]

    @app.train()
    def train(message, context):
        images, labels, model, optimizer, criterion = held(name)
        client = int(context.node_config["partition-id"])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        generator = np.random.default_rng()
        for _ in range(w.steps):
            rows = torch.from_numpy(generator.choice(w.records, w.batch, replace=False))
            optimizer.zero_grad()
            criterion(model(images[client, rows]), labels[client, rows]).backward()
            optimizer.step()
        numbers = MetricRecord({"num-examples": w.records})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": numbers})
        return Message(content=content, reply_to=message)

    return app


def make(w):
    if w.private == "client":
        raise SystemExit("not compared with noise on clients")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    ends, rounds, server = [], ROUNDS.get(w.name, 2), ServerApp()

    @server.main()
    def main(grid, context):
        def clock(done, arrays):
            ends.append(time.perf_counter())

        strategy = FedAvg(
            fraction_train=w.cohort / w.clients,
            fraction_evaluate=0.0,
            min_train_nodes=w.cohort,
            min_available_nodes=w.clients,
        )
        start = ArrayRecord(held(w.name)[2].state_dict())
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds + 1, evaluate_fn=clock)

    def run():
        ends.clear()
        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client_app(w.name), num_supernodes=w.clients, backend_config=resources)
        return [1e3 * seconds for seconds in np.diff(ends)][1:]  # the first round starts the workers

    return run, None
