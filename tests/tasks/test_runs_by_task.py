"""Every task goes through a run, its files, a report and a sweep; what does not fit it ends in one line."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from flax import linen as nn
from helpers import refusal, target_data, usual

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.models import task_of, usual_model
from fedjax_dp.rounds import metrics
from fedjax_dp.rounds.comparison import standing
from fedjax_dp.tasks import LossWords, Metric, measures_of_task, ratio
from fedjax_dp.tools import cli

RUN = ["--rounds", "2", "--algorithm", "fedavg", "--cohort-size", "2", "--batch-size", "4", "--local-steps", "2"]
PLAIN = {"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1}


class NextToken(nn.Module):
    tokens: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.tokens)(nn.Embed(self.tokens, 4)(x))


def model_of(data):
    return fdp.model(NextToken(data.classes), data) if data.task == "sequence" else usual_model(data)


def written(task):
    """A file of the task, and the flags that read it."""
    rng = np.random.default_rng(0)
    if task == "sequence":
        ids = (rng.integers(1, 8, (60, 1)) + np.arange(6)) % 7 + 1
        ids[:, 4:] *= rng.integers(0, 2, (60, 1))
        arrays = {"x_train": ids[:50, :-1], "y_train": ids[:50, 1:], "x_test": ids[50:, :-1], "y_test": ids[50:, 1:]}
        np.savez(
            "data.npz",
            **arrays,
            vocabulary_size=9,
            oov=[8],
            eos=7,
            client_ids=np.arange(50) % 4,
            test_client_ids=np.arange(10) % 4,
        )
        pathlib.Path("net.py").write_text(
            "from flax import linen as nn\n\nclass Net(nn.Module):\n    classes: int\n\n    @nn.compact\n"
            "    def __call__(self, x):\n        return nn.Dense(self.classes)(nn.Embed(self.classes, 4)(x))\n"
        )
        return ["--dataset", "npz:data.npz", "--task", task, "--model", "net.py:Net"]
    x = rng.normal(size=(80, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["who"] = rng.integers(0, 4, 80)
    if task == "binary":
        frame["label"] = np.where(x[:, 0] > 0, "yes", "no")
    else:
        frame[["u", "v"]] = x[:, :2] * 2 if task == "regression" else (x[:, :2] > 0).astype(int)
    frame.to_csv("data.csv", index=False)
    labels = [] if task == "binary" else ["--label-column", "u,v"]
    return ["--dataset", "csv:data.csv", "--task", task, "--client-column", "who", *labels]


TARGET = {"sequence": "perplexity=1e9", "multi_label": "micro_f1=0", "binary": "auc=0", "regression": "rmse=1e9"}


@pytest.mark.parametrize("task", usual(TARGET, ("sequence",)))
@pytest.mark.slow
def test_a_run_of_every_task_tells_its_metrics_draws_them_and_is_reported(task, capsys):
    given = [*written(task), *RUN, "--target", TARGET[task]]
    assert cli.main(["run", *given, "--out", "r", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = [f"test_{metric['name']}" for metric in told["task"]["metrics"]]
    assert told["task"]["name"] == task
    assert list(told["history"][0])[1 : 1 + len(names)] == names
    assert [told[name] for name in names] == [told["history"][-1][name] for name in names]
    assert told["rounds_to_target"] == 1
    assert told["history"][-1]["worst_tenth"] is not None
    assert json.loads(pathlib.Path("r/metrics.json").read_text()) == told["history"]
    assert plt.imread("r/run.png")[..., :3].std() > 0.02
    opened = fdp.open_run("r")
    assert opened.metrics == {name.removeprefix("test_"): told[name] for name in names}
    assert cli.main(["report", "r", "--out", "r.html"]) == 0
    page = pathlib.Path("r.html").read_text()
    assert f"test {told['task']['metrics'][0]['words']}" in page
    assert task == "binary" or "accuracy by round" not in page.lower() or "token accuracy by round" in page.lower()


@pytest.mark.slow
def test_the_words_of_a_run_say_what_a_record_is_and_how_far_the_target_was(capsys):
    assert cli.main(["run", *written("sequence"), *RUN, "--target", "perplexity=1"]) == 0
    out = capsys.readouterr().out
    assert "record    one stored row, here one sequence" in out
    assert "also      token accuracy without OOV " in out
    assert "target    perplexity 1 not reached" in out
    assert "no better than to guess" not in out


@pytest.mark.slow
def test_a_sweep_takes_the_lowest_of_a_metric_that_falls(capsys):
    given = written("regression")
    base = {given[at].removeprefix("--").replace("-", "_"): given[at + 1] for at in range(0, len(given), 2)}
    base |= {"rounds": 2, "algorithm": "fedavg", "cohort_size": 2, "batch_size": 4, "local_steps": 2}
    lines = [f"{name} = {json.dumps(value)}" for name, value in base.items()]
    pathlib.Path("s.toml").write_text("\n".join(["[base]", *lines, "[axes]", "learning_rate = [0.001, 0.1]", ""]))
    assert cli.main(["sweep", "s.toml", "--out", "s"]) == 0
    assert "test root mean squared error" in capsys.readouterr().out
    found = fdp.open_sweep("s")
    ends = {p["values"]["learning_rate"]: p["history"][-1]["test_rmse"] for p in found.records}
    assert ends[0.1] < ends[0.001]
    assert found.best().values == {"learning_rate": 0.1}
    assert found.best("test_r2").values == {"learning_rate": 0.1}
    assert cli.main(["best", "s"]) == 0
    out = capsys.readouterr()
    assert "learning_rate = 0.1" in out.out
    assert "biased downwards" in out.err or "of one seed" in out.err
    with pytest.raises(errors.ConfigurationError, match=r"one of test_rmse, test_mse, .* got 'test_accur"):
        found.best("test_accuracy")
    assert cli.main(["report", "s", "--out", "s.html"]) == 0
    assert "Root mean squared error against epsilon" in pathlib.Path("s.html").read_text()


@pytest.mark.parametrize(
    ("task", "more", "told"),
    [
        ("regression", ["--target", "accuracy=.9"], "METRIC one of rmse, mse, mae, r2, loss, got 'accuracy=.9'"),
        ("regression", ["--loss", "mean"], "loss must be one of squared, huber for task regression, got 'mean'"),
        ("sequence", ["--model", "logistic"], "shape of a record must be"),
        (
            "sequence",
            ["--model", "lstm"],
            "scores of the model must be (5, 9), as the loss of task sequence takes them",
        ),
        ("sequence", ["--task", "classes"], "x_train and y_train must be (records, ...) and (records,)"),
    ],
)
def test_what_does_not_fit_a_task_is_one_line(task, more, told, capsys):
    given = written(task)
    for flag in more[::2]:
        if flag in given:
            del given[given.index(flag) : given.index(flag) + 2]
    assert cli.main(["run", *given, *RUN, *more, "--out", "r"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert not pathlib.Path("r").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"vocabulary_size": None}, "vocabulary_size must be one integer for task sequence, got nothing"),
        ({"oov": 8}, "oov must be a list of integers"),
        ({"pad": -2}, "vocabulary: pad must be an integer from -1 to 8, got -2"),
    ],
)
def test_an_npz_file_of_sequences_says_its_vocabulary(change, told, capsys):
    given = written("sequence")
    arrays = dict(np.load("data.npz")) | change
    np.savez("data.npz", **{name: a for name, a in arrays.items() if a is not None})
    assert cli.main(["run", *given, *RUN]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("task", usual(("classes", *TARGET), ("sequence",)))
def test_metrics_of_blocks_and_clients_are_those_of_all_records(task, monkeypatch):
    data = target_data(task, records=90, tested=True)
    model = model_of(data)
    params, placed = model.init(jax.random.key(0)), jax.tree.map(jnp.asarray, data)
    found = []
    for rows in (7, 2048):
        monkeypatch.setattr(metrics, "ROWS", rows)
        seen = metrics.evaluate.__wrapped__(params, placed, model=model)
        found.append(metrics.values_of(task_of(model, data), seen, data))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    by_client = metrics.client_metric(params, data, model=model)
    main = task_of(model, data).metrics[0].name
    for client in range(data.num_clients):
        rows = np.flatnonzero(np.asarray(data.test_clients) == client)
        mine = dataclasses.replace(data, x_test=data.x_test[rows], y_test=data.y_test[rows], test_clients=None)
        seen = metrics.evaluate(params, mine, model=model)
        assert by_client[client] == pytest.approx(metrics.values_of(task_of(model, mine), seen, mine)[main], rel=1e-5)


def test_the_worst_tenth_has_the_highest_of_a_metric_that_falls():
    errors_of = np.random.default_rng(0).permutation(np.arange(20.0))
    assert standing(errors_of, np.ones(20), better=-1).worst_tenth == 18.5
    assert standing(errors_of, np.ones(20)).worst_tenth == 0.5


@dataclasses.dataclass(frozen=True)
class Near:
    """A task of a user's own."""

    name = "near"
    metrics = (Metric("near", "near enough", 1, ratio("near"), share=True),)
    loss_words = LossWords("absolute error")
    keeps_scores = False

    def loss(self, scores, target):
        return jnp.mean(jnp.abs(scores - target))

    def scores(self, target_shape, outputs):
        return (outputs,)

    def sums(self, scores, target):
        return {"near": jnp.all(jnp.abs(scores - target) < 1).astype(jnp.int32)}


@pytest.mark.slow
def test_a_task_of_ones_own_is_trained_measured_and_swept():
    data = target_data("regression", records=60)
    model = usual_model(data).for_task(Near())
    algorithms = [fdp.fedavg(**PLAIN | {"learning_rate": rate}) for rate in (1e-4, 0.1)]
    runs = [fdp.run(algorithm, data, rounds=8, model=model, target="near=0.01") for algorithm in algorithms]
    scores = np.array([model.scores(runs[1].params, jnp.asarray(x)) for x in data.x_test])
    assert runs[1].test_near == pytest.approx(np.mean(np.all(np.abs(scores - data.y_test) < 1, 1)))
    assert runs[1].test_loss == pytest.approx(np.abs(scores - data.y_test).mean(), rel=1e-5)
    swept = fdp.sweep(algorithms[0], data, axes={"learning_rate": [1e-4, 0.1]}, rounds=8, model=model, progress=False)
    assert [p["history"][-1]["test_near"] for p in swept.records] == [run.test_near for run in runs]
    assert swept.records[0]["task"]["name"] == "near"
    assert measures_of_task(Near()).main.label == "test near enough (%)"


@pytest.mark.parametrize("given", [3, "regression", LossWords("loss")])
def test_what_is_no_task_is_refused_in_one_line(given):
    data = target_data("regression")
    assert "task must be a value that follows fedjax_dp.tasks.Task" in refusal(fdp.model, nn.Dense(3), data, task=given)


@pytest.mark.slow
def test_targets_of_ones_own_are_trained_with_a_loss_and_nothing_else_is_claimed():
    data = target_data("own", records=60, tested=True)

    def loss(scores, target):
        return jnp.mean((scores[:2] - target["box"].sum(0)) ** 2)

    run = fdp.run(fdp.fedavg(**PLAIN), data, rounds=4, model=fdp.model(nn.Dense(3), data, loss=loss))
    assert run.metrics == {}
    assert run.history[-1].test_loss < run.history[0].test_loss
    assert run.history[-1].worst_tenth >= run.history[-1].client_mean
    with pytest.raises(AttributeError, match="no test_accuracy; of the test set it has test_loss"):
        _ = run.test_accuracy
    assert "loss of the model must be one for task own" in refusal(
        fdp.simulate, fdp.fedavg(**PLAIN), data, rounds=1, model=fdp.logistic_regression((4,), 3)
    )


@pytest.mark.exhaustive
def test_a_loss_of_ones_own_keeps_the_metrics_of_scores_that_fit():
    data = target_data("classes", records=60)
    run = fdp.simulate(
        fdp.fedavg(**PLAIN), data, rounds=2, model=fdp.model(nn.Dense(3), data, loss=lambda s, y: (s[y] - 1) ** 2)
    )
    assert set(run.history[-1].metrics) == {"accuracy"}
    other = fdp.model(nn.Dense(5), data, loss=lambda s, y: jnp.sum((s - y) ** 2))
    assert fdp.simulate(fdp.fedavg(**PLAIN), data, rounds=1, model=other).history[-1].metrics == {}


@pytest.mark.slow
@pytest.mark.parametrize("task", usual(["sequence", "multi_label", "binary", "regression"], ["multi_label"]))
@pytest.mark.parametrize("canary", usual(["gradient", "label-flip", "blank", "mislabelled"], ["label-flip"]))
def test_an_audit_plays_records_with_targets_of_the_task(task, canary):
    data = target_data(task, records=60)
    algorithm = fdp.dpnfl(**PLAIN, clip_norm=0.1, noise_multiplier=1.0)
    found = fdp.audit(algorithm, data, rounds=2, model=model_of(data), canary=canary, trials=450, delta=1e-3)
    assert found.lower <= found.guarantee.epsilon
