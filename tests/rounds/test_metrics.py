"""Every metric against slow NumPy on ragged data, and against programs that would be wrong."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import own_parts as own
import pytest
import reference
from helpers import ragged_data, refusal, usual, with_given

import fedjax_dp as fdp
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import logistic_regression
from fedjax_dp.pytrees import equal, ravel
from fedjax_dp.rounds import metrics
from fedjax_dp.rounds.comparison import standing
from fedjax_dp.rounds.metrics import PROBES, Evaluation, noise_to_signal
from fedjax_dp.rounds.state import RoundReport
from fedjax_dp.tasks import Classes, Regression, measures_of_task
from fedjax_dp.tasks.measures import target_of
from fedjax_dp.tools import cli, figures

MODEL = logistic_regression((3,), 3)
SIZES = [5, 9, 2, 7, 4, 8, 3, 1, 6, 5, 2]
NOISE = np.linspace(0.5, 1.5, len(SIZES))
COMMON = {"cohort_size": None, "batch_size": None, "batches": "full", "local_steps": 1, "learning_rate": 0.2}


def params_of(seed=1):
    rng = np.random.default_rng(seed)
    kernel, bias = rng.normal(size=(3, 3)), rng.normal(size=3)
    return {"Dense_0": {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}}


@pytest.fixture(scope="module")
def data():
    """Shares that are not the sizes'; 49 test records, of which clients 3 and 10 have none."""
    toy = ragged_data(SIZES)
    rng = np.random.default_rng(4)
    shares = rng.dirichlet(np.ones(len(SIZES))).astype(np.float32)
    owners = rng.choice([c for c in range(len(SIZES)) if c not in (3, 10)], 49).astype(np.int32)
    return dataclasses.replace(toy, shares=shares, x_test=toy.x_test[:49], y_test=toy.y_test[:49], test_clients=owners)


PROBLEM = reference.softmax_problem(3, 3)


def flat(params):
    return np.asarray(ravel(params)[0], float)


def by_client(params, data, of=lambda gradients: gradients):
    """Mean loss and mean gradient of every client, by loops; `of` the gradients of its records."""
    parts = [slice(o, o + n) for o, n in zip(data.offsets, data.sizes, strict=True)]
    losses = [PROBLEM.losses(flat(params), data.x[part], data.y[part]).mean() for part in parts]
    gradients = [of(PROBLEM.gradients(flat(params), data.x[part], data.y[part])).mean(0) for part in parts]
    return np.array(losses), np.array(gradients)


def is_right(params, x, y):
    w = flat(params)
    return np.argmax(w[:3] + np.asarray(x, float) @ w[3:].reshape(3, 3), -1) == y


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("rows", [7, 16, 2048])  # 49 = 7 * 7; 16 leaves a block of one record
def test_accuracy_and_loss_equal_the_loops_whatever_the_blocks(data, rows, monkeypatch):
    monkeypatch.setattr(metrics, "ROWS", rows)
    params = params_of()
    scores = metrics.evaluate.__wrapped__(params, jax.tree.map(jnp.asarray, data), model=MODEL)
    right, losses = is_right(params, data.x_test, data.y_test), PROBLEM.losses(flat(params), data.x_test, data.y_test)
    assert metrics.values_of(Classes(), scores, data) == {"accuracy": pytest.approx(np.mean(right), abs=1e-6)}
    assert float(scores.sums["loss"]) == pytest.approx(np.sum(losses), rel=1e-5)
    expected = [sum(r for r, c in zip(right, data.test_clients, strict=True) if c == k) for k in range(len(SIZES))]
    np.testing.assert_array_equal(scores.by_client["right"], expected)


def test_a_client_without_test_records_has_no_accuracy_and_is_left_out(data):
    found = metrics.client_metric(params_of(), data, model=MODEL)
    assert np.flatnonzero(np.isnan(found)).tolist() == [3, 10]
    params, known = params_of(), []
    for client in range(len(SIZES)):
        mine = np.flatnonzero(np.asarray(data.test_clients) == client)
        if mine.size:
            known.append(np.mean(is_right(params, data.x_test[mine], data.y_test[mine])))
    spread = standing(found, np.bincount(data.test_clients, minlength=len(SIZES)))
    assert spread.mean == pytest.approx(np.mean(known))
    assert spread.worst_tenth == pytest.approx(min(known))  # nine clients: one is the worst tenth
    assert spread.variance == pytest.approx(np.mean((np.array(known) - np.mean(known)) ** 2))
    assert spread.mean != pytest.approx(np.nansum(found) / len(SIZES))  # an empty part is not an accuracy of zero
    assert metrics.evaluate(params, dataclasses.replace(data, test_clients=None), model=MODEL).by_client is None


def test_worst_tenth_is_a_mean_over_clients_rounded_up():
    accuracies = np.random.default_rng(0).permutation(np.linspace(0.0, 1.0, 21))
    spread = standing(np.concatenate([accuracies, [np.nan] * 5]), np.repeat([1, 0], [21, 5]))
    assert spread.worst_tenth == pytest.approx(np.mean([0.0, 0.05, 0.1]))  # 2.1 clients are 3
    assert spread.worst_tenth != pytest.approx(np.quantile(accuracies, 0.1))
    assert spread.variance == pytest.approx(accuracies.var())
    assert spread.variance != pytest.approx(accuracies.var(ddof=1))
    assert standing(np.array([0.25]), np.array([3])) == (0.25, 0.25, 0.25, 0.0)


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("rows", [13, 51, 2048])  # of 52 records
def test_objective_and_gradient_norm_equal_the_loops_whatever_the_blocks(data, rows, monkeypatch):
    monkeypatch.setattr(metrics, "ROWS", rows)
    params = params_of()
    objective, norm = metrics.train_metrics.__wrapped__(params, jax.tree.map(jnp.asarray, data), model=MODEL)
    losses, gradients = by_client(params, data)
    shares = np.asarray(data.shares, float)
    assert float(objective) == pytest.approx(shares @ losses, rel=1e-5)
    assert float(norm) == pytest.approx(np.linalg.norm(shares @ gradients), rel=1e-5)
    wrong = {
        "mean over clients": (losses.mean(), np.linalg.norm(gradients.mean(0))),
        "mean over records": tuple(
            f(np.asarray(data.sizes) / 52 @ table) for f, table in ((float, losses), (np.linalg.norm, gradients))
        ),
    }
    for name, (loss, size) in wrong.items():
        assert float(objective) != pytest.approx(loss, rel=1e-4), name
        assert float(norm) != pytest.approx(size, rel=1e-4), name
    assert float(norm) != pytest.approx(shares @ np.linalg.norm(gradients, axis=1), rel=1e-2)  # not a mean of norms


@dataclasses.dataclass(frozen=True)
class Wide:
    """Makes `width` numbers of each record."""

    width: int

    def loss(self, params, x, y, key=None):
        return (params * jnp.repeat(x[:1], self.width)).sum() + y


def test_blocks_shrink_as_a_model_makes_more_of_a_record(data):
    few = metrics.rows_per_block(Wide(10), jnp.float32(1), data, 10**6)
    many = metrics.rows_per_block(Wide(30_000), jnp.float32(1), data, 10**6)
    assert few == metrics.ROWS
    assert 2 * 30_000 * many <= metrics.FLOATS < 10 * 30_000 * many
    assert metrics.rows_per_block(Wide(10**8), jnp.float32(1), data, 10**6) == 1
    assert metrics.rows_per_block(Wide(10), jnp.float32(1), data, 40) == 40


def last(algorithm, data, **options):
    execution = Execution(signal=True)  # which a GPU has to be asked for
    return fdp.simulate(algorithm, data, rounds=1, model=MODEL, **{"execution": execution} | options).history[-1]


@pytest.mark.slow
def test_evaluations_carry_what_was_asked_and_probes_are_named(data):
    assert set(Evaluation._fields) - set(PROBES) == {"round", "metrics", "test_loss"}
    silent = fdp.dpnfl(**COMMON, clip_norm=0.4, noise_multiplier=0 * NOISE)
    run = fdp.simulate(silent, data, rounds=2, model=MODEL, train_metrics=True, execution=Execution(signal=True))
    point, (losses, gradients) = run.history[-1], by_client(run.params, data)
    assert point.objective == pytest.approx(np.asarray(data.shares, float) @ losses, rel=1e-5)
    assert point.gradient_norm == pytest.approx(np.linalg.norm(np.asarray(data.shares, float) @ gradients), rel=1e-4)
    assert point.noise_to_signal == 0.0
    spread = standing(
        metrics.client_metric(run.params, data, model=MODEL), np.bincount(data.test_clients, minlength=len(SIZES))
    )
    assert (point.client_mean, point.worst_tenth) == (spread.mean, spread.worst_tenth)
    assert point.client_variance == spread.variance
    assert point.personal_mean is None


def test_a_metric_that_is_not_finite_is_none(data):
    x = np.array(data.x)
    x[3] = 1e30  # the square of this record's gradient overflows
    broken = dataclasses.replace(data, x=x)
    report = RoundReport(*np.ones((len(RoundReport._fields), 1), bool))._replace(learnt_clip_norm=None)
    zeros = jax.tree.map(jnp.zeros_like, params_of())
    measured = metrics.measure(zeros, jax.tree.map(jnp.asarray, broken), model=MODEL, train=True)
    point = metrics.evaluation_of(1, measured, report, broken, Classes())
    assert point.gradient_norm is None
    assert point.test_accuracy > 0


def clipped_means(data, clip_norm):
    """Every client's mean clipped gradient at the start, where all parameters are zero."""
    zeros = jax.tree.map(jnp.zeros_like, params_of())
    return by_client(zeros, data, lambda each: np.array([reference.clip_to(g, clip_norm) for g in each]))[1]


BOUNDS = {
    "record": (fdp.parts.ClipRecords(), lambda data: np.linalg.norm(clipped_means(data, 0.4), axis=1)),
    "batch": (fdp.parts.ClipBatch(), lambda data: np.minimum(mean_norms(data), 0.4)),
    "scale": (fdp.parts.ScaleGradients(gradient_bound=8.0), lambda data: mean_norms(data) * 0.4 / 8),
    "none": (fdp.parts.Unbounded(), lambda data: mean_norms(data)),
}


def mean_norms(data):
    return np.linalg.norm(clipped_means(data, np.inf), axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(BOUNDS, ["record", "batch"]))
def test_noise_to_signal_equals_numpy(data, name):
    bound, signals_of = BOUNDS[name]
    value = own.with_privatizer(fdp.dpnfl(**COMMON, clip_norm=0.4, noise_multiplier=NOISE), bound=bound)
    point, signals = last(value, data), signals_of(data)
    assert (point.objective, point.gradient_norm) == (None, None)  # not asked for
    stds = NOISE * 0.4 / (1 if name == "batch" else np.array(SIZES))

    def ratio(squares):
        return np.sqrt(squares.mean() / (signals**2).mean())

    assert point.noise_to_signal == pytest.approx(ratio(12 * stds**2), rel=1e-4)
    assert point.noise_to_signal != pytest.approx(ratio(stds**2), rel=1e-2)  # of one coordinate
    if name != "batch":
        assert point.noise_to_signal != pytest.approx(ratio(12 * (NOISE * 0.4) ** 2), rel=1e-2)  # of the sum


@pytest.mark.exhaustive  # CI: noise on records and of the server, above and below
def test_noise_to_signal_of_output_noise_counts_it_once_a_round(data):
    """One client, two steps: the noise sits in the last, whose gradient is at the model after the first."""
    only = dataclasses.replace(ragged_data([6]), test_clients=None)
    value = fdp.dp_fedavg_output(
        **COMMON | {"local_steps": 2, "schedule": "constant"}, clip_norm=0.1, noise_multiplier=0.7
    )
    got = last(value, only).noise_to_signal
    start, square = {"Dense_0": {"kernel": np.zeros((3, 3)), "bias": np.zeros(3)}}, 0.0
    for _ in range(2):
        g = by_client(start, only)[1][0]
        g = g * min(1, 0.1 / np.linalg.norm(g))
        square += g @ g
        layer = start["Dense_0"]
        start = {
            "Dense_0": {"kernel": layer["kernel"] - 0.2 * g[3:].reshape(3, 3), "bias": layer["bias"] - 0.2 * g[:3]}
        }
    on_upload = 0.7 * 0.1 * (0.2 + 0.2)
    assert got == pytest.approx(on_upload / 0.2 * np.sqrt(12) / np.sqrt(square), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", usual([{}, {"adaptive_clip": True, "bit_noise": 3.0}], [{}]))
def test_noise_to_signal_of_the_servers_noise_compares_it_with_the_mean_update(data, options):
    value = fdp.dp_fedavg(
        **COMMON | {"cohort_size": 4}, clip_norm=0.1, noise_multiplier=0.9, cohort="uniform", **options
    )
    update, ones = (
        np.concatenate(
            [
                np.ravel(leaf)
                for leaf in jax.tree.leaves(
                    fdp.simulate(
                        with_given(value, server=jnp.full((1, 1, 1, 12), noise)), data, rounds=1, model=MODEL
                    ).params
                )
            ]
        )
        for noise in (0.0, 1.0)
    )
    std = (ones - update).mean()
    assert last(value, data).noise_to_signal == pytest.approx(std * np.sqrt(12) / np.linalg.norm(update), rel=1e-3)


@pytest.mark.parametrize("options", usual([{}, {"clip_by": "tensor"}, {"adaptive_clip": True, "bit_noise": 3.0}], [{}]))
@pytest.mark.slow
def test_the_share_of_clipped_updates_is_what_numpy_counts(data, options):
    zeros = {"Dense_0": {"kernel": np.zeros((3, 3)), "bias": np.zeros(3)}}
    updates = 0.2 * np.array(by_client(zeros, data)[1])
    tensors = [updates[:, :3], updates[:, 3:]] if options.get("clip_by") else [updates]
    norms = np.sort(np.max([np.linalg.norm(tensor, axis=1) for tensor in tensors], axis=0) * len(tensors) ** 0.5)
    between = float(norms[3:5].mean())  # four of eleven are within
    everyone = COMMON | {"cohort_size": len(SIZES)}
    value = fdp.dp_fedavg(**everyone, clip_norm=between, noise_multiplier=0.9, cohort="uniform", **options)
    first = fdp.simulate(value, data, rounds=1, model=MODEL).history[-1]
    assert first.clipped == pytest.approx(7 / 11)
    assert first.learnt_clip_norm == (pytest.approx(between) if "adaptive_clip" in options else None)


@pytest.mark.slow
def test_a_gpu_is_asked_for_the_signal_and_parameters_do_not_know_of_it(data, monkeypatch):
    monkeypatch.setattr(Execution, "platform", "gpu")
    assert not Execution().takes_signal
    monkeypatch.setattr(Execution, "platform", "cpu")
    assert Execution().takes_signal
    value, options = fdp.dpnfl(**COMMON, clip_norm=0.4, noise_multiplier=NOISE), {"rounds": 1, "model": MODEL}
    whole, without, requested = (
        fdp.simulate(value, data, execution=Execution(signal=signal), train_metrics=train, **options)
        for signal, train in ((True, False), (False, False), (False, True))
    )
    assert whole.history[-1].noise_to_signal == requested.history[-1].noise_to_signal > 0
    assert without.history[-1].noise_to_signal is None
    assert equal(whole.params, without.params)
    unnoised = fdp.dpnfl(**COMMON, clip_norm=0.4, noise_multiplier=0 * NOISE)
    assert last(unnoised, data, execution=Execution(signal=False)).noise_to_signal == 0.0


def test_noise_to_signal_is_zero_without_noise_and_none_where_nothing_is_known(data):
    everyone = np.ones(2, bool)
    assert noise_to_signal([0.0, 0.0], [0.0, 0.0], everyone) == 0.0
    assert noise_to_signal([4.0, 4.0], [0.0, 2.0], everyone) == 2.0  # an empty batch is no infinite ratio
    assert noise_to_signal([4.0, 99.0], [1.0, 99.0], np.array([True, False])) == 2.0  # who is absent does not count
    for noise, signal, present in (
        ([1.0], [0.0], [True]),
        ([1.0], [1.0], [False]),
        ([np.nan], [1.0], [True]),
        ([1.0], [np.inf], [True]),
    ):
        assert noise_to_signal(noise, signal, np.array(present)) is None
    shared = fdp.dp_fedavg.of({**COMMON, "clip_norm": 0.5, "noise_multiplier": 8.0, "noise": "shared"})
    assert np.isnan(shared.upload.noise_std((), 1.0, 0))  # it comes with the secure sum


def history_of(*accuracies):
    return [Evaluation(2 * i + 2, {"accuracy": accuracy}, 1.0) for i, accuracy in enumerate(accuracies)]


def rounds_to(history, said, task=None):
    return metrics.rounds_to(history, target_of(said, measures_of_task(task or Classes())))


def test_rounds_to_a_target_is_the_first_evaluated_round_that_reaches_it():
    history = history_of(0.2, 0.6, 0.5, 0.7)
    assert rounds_to(history, "accuracy=0.6") == 4  # that it falls again later does not count
    assert rounds_to(history, "accuracy=0.61") == 8
    assert rounds_to(history, "accuracy=0.1") == 2
    assert rounds_to(history, "accuracy=0.71") is None
    assert rounds_to([], "accuracy=0.1") is None


def test_a_target_is_reached_in_the_direction_of_its_metric():
    falling = [
        Evaluation(i + 1, {"rmse": rmse, "r2": 1 - rmse}, rmse**2) for i, rmse in enumerate((9.0, 5.0, 6.0, 2.0))
    ]
    assert rounds_to(falling, "rmse=5", Regression()) == 2
    assert rounds_to(falling, "rmse=1.9", Regression()) is None
    assert rounds_to(falling, "r2=-4", Regression()) == 2
    assert rounds_to(falling, "loss=4", Regression()) == 4


QUICK = ["--rounds", "4", "--local-steps", "2", "--evaluate-every", "2", "--checkpoint-every", "2"]


@pytest.mark.slow
def test_a_run_tells_probes_target_and_bytes_and_resumes_with_them(capsys):
    words = "--algorithm fedavg --train-metrics true --target accuracy=0.3 --out r --verbose"
    assert cli.main(["run", *QUICK, *words.split()]) == 0
    out = capsys.readouterr().out
    told = json.loads(pathlib.Path("r/result.json").read_text())
    assert told["probes"] == list(PROBES)
    assert told["history"][-1]["objective"] > 0
    assert told["history"][-1]["gradient_norm"] > 0
    assert told["history"][-1]["worst_tenth"] is None  # no client has a part of this test set
    reached, traffic = told["rounds_to_target"], told["traffic"]
    assert reached == next(p["round"] for p in told["history"] if p["test_accuracy"] >= 0.3)
    assert told["bytes_to_target"] == reached * (traffic["round_down"] + traffic["round_up"])
    assert traffic["total"] == 4 * 5 * (traffic["down"] + traffic["up"])
    assert f"target    accuracy 0.3 first seen after round {reached}, {told['bytes_to_target']:,.0f} bytes" in out
    assert "objective" in out.split("internals ")[1]
    old = [
        {name: point[name] for name in ("round", "test_accuracy", "test_loss", "train_loss", "clipped")}
        for point in told["history"]
    ]  # as runs before these metrics wrote them
    pathlib.Path("r/metrics.json").write_text(json.dumps([old[0], told["history"][1]]))
    pathlib.Path("r/result.json").unlink()  # else nothing is left to do
    assert cli.main(["run", "--resume", "r", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"] == [Evaluation.of_row(old[0]).row(), told["history"][1]]


@pytest.mark.slow
def test_a_target_that_is_not_reached_is_said(capsys):
    assert cli.main(["run", *QUICK, "--algorithm", "fedavg", "--target", "accuracy=1"]) == 0
    assert "target    accuracy 1 not reached" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ("accuracy=1.01", "a value from 0 to 1 of accuracy, got 'accuracy=1.01'"),
        ("accuracy=nan", "METRIC=VALUE, got 'accuracy=nan'; such as accuracy=0.9"),
        ("0.9", "METRIC=VALUE, got '0.9'"),
        ("perplexity=9", "METRIC=VALUE, METRIC one of accuracy, loss, got 'perplexity=9'"),
        ("acuracy=.9", "did you mean accuracy?"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(wrong, wanted):
    message = refusal(target_of, wrong, measures_of_task(Classes()))
    assert message.startswith("target must be ")
    assert wanted in message


def test_the_picture_of_a_run_shows_the_worst_tenth_and_labels_probes():
    spread = {"client_mean": 0.7, "worst_tenth": 0.4, "client_variance": 0.01}
    history = [Evaluation(r, {"accuracy": 0.7}, 1.0, 1.2, 0.5, 3.0, 1.1, 0.2, **spread) for r in (1, 2)]
    seen = [figures.plot_run(history, "a promise", "a title", "a.png")]
    seen.append(figures.plot_run([Evaluation(1, {"accuracy": 0.7}, 1.0)], "a promise", "a title", "b.png"))
    labels = [axes.get_legend_handles_labels()[1] for axes in (*seen[0].axes, *seen[1].axes)]
    assert labels[0] == ["all test records", "worst tenth of clients (probe)", "worst tenth to mean (probe)"]
    assert labels[1] == ["test records", "cohort's batches (probe)", "all training records (probe)"]
    assert labels[2] == ["all test records"]
    assert seen[1].axes[0].get_legend() is None
    assert labels[3] == ["test records"]  # nothing else is known
    assert pathlib.Path("a.png").stat().st_size > pathlib.Path("b.png").stat().st_size > 10_000
