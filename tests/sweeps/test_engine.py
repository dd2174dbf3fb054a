"""Sweeps: every point is its single run, whatever it shares a program, a batch or a machine with."""

import dataclasses
import types

import jax
import numpy as np
import pytest
from helpers import TwoLayerModel, ragged_data, refusal, usual

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.experiments.console import Screen
from fedjax_dp.models import logistic_regression
from fedjax_dp.privacy import PrivacyTerms
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.sweeps import engine, program, runner
from fedjax_dp.sweeps.engine import Job, JobGroup, group_jobs
from fedjax_dp.sweeps.runner import Watch
from fedjax_dp.tasks import Own, describe_task

MODEL = logistic_regression((3,), 3)
SIZES = [4, 6, 5, 8, 7]
COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 3, "learning_rate": 0.3}
ROUNDS = 4


@pytest.fixture(scope="module")
def data():
    return ragged_data(SIZES)


def dpnfl(**options):
    return fdp.dpnfl(**{**COMMON, "clip_norm": 0.7, "noise_multiplier": 0.5, **options})


def job_of(algorithm, data, model, rounds, seed, *options):
    return Job(plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=PrivacyTerms()), *options)


def with_run(job, **changes):
    return job._replace(run=dataclasses.replace(job.run, **changes))


def jobs_on(data, algorithms, seeds=(0, 1), rounds=ROUNDS):
    return [job_of(value, data, MODEL, rounds, seed, 1) for value in algorithms for seed in seeds]


def outcomes(jobs, stop=None, **options):
    """Of jobs, with a `stop` after so many evaluations, from which they go on."""
    found = {}
    for numbers in group_jobs(jobs):
        group = JobGroup([jobs[number] for number in numbers], **options)
        before = None if stop is None else dict(group.run(until=stop))
        for at, outcome in group.run(before=before):
            assert numbers[at] not in found  # every point once
            found[numbers[at]] = outcome
    return [found[number] for number in range(len(jobs))]


def single(job, **options):
    return fdp.simulate(
        job.run.algorithm,
        job.run.data,
        rounds=job.run.rounds,
        seed=job.run.seed,
        model=job.run.model,
        evaluate_every=1,
        train_metrics=job.train_metrics,
        **options,
    ).history


def rates(*found):
    return [dpnfl(learning_rate=rate, noise_multiplier=noise) for rate, noise in found]


GRID = rates((0.1, 0.0), (0.3, 0.5), (0.9, 2.0))


def test_points_that_differ_in_numbers_share_a_program(data):
    per_client = dpnfl(noise_multiplier=np.linspace(0.1, 1.0, 5))  # as calibration finds it
    algorithms = [*GRID, dpnfl(clip_norm=3.0), dpnfl(batch_size=3), dpnfl(local_steps=2), per_client]
    jobs = jobs_on(data, [*algorithms, fdp.fedavg(**COMMON)])
    parts = [[0, 1, 2, 3, 4, 5, 6, 7, 12, 13], [8, 9], [10, 11], [14, 15]]
    assert group_jobs(jobs) == parts
    others = [with_run(job, rounds=9) for job in jobs[:2]] + [job._replace(train_metrics=True) for job in jobs[:2]]
    assert group_jobs([*jobs[:2], *others]) == [[0, 1, 2, 3], [4, 5]]


@fdp.value
class OwnRule(fdp.parts.LocalRule):
    """A rule of one's own, which may read the privatizer's noise as a number."""


def test_a_part_of_ones_own_sees_the_noise_of_a_single_run(data):
    algorithm = dpnfl()
    rule = OwnRule(**{field.name: getattr(algorithm.local.rule, field.name) for field in dataclasses.fields(OwnRule)})
    own = fdp.pytrees.replace(algorithm, local=fdp.pytrees.replace(algorithm.local, rule=rule))
    noises = [
        job_of(one, data, MODEL, ROUNDS, 0).algorithm.local.privatizer.noise_multiplier for one in (own, algorithm)
    ]
    assert [np.shape(noise) for noise in noises] == [(), (data.num_clients,)]


@pytest.mark.slow
def test_a_point_equals_its_single_run_bit_for_bit_and_a_group_is_traced_once(data, monkeypatch):
    """Numbers, seeds, partitions and rounds are traced; only structure is compiled again."""
    traced, progress, run_rounds = [], [], program.run_rounds
    monkeypatch.setattr(program, "run_rounds", lambda *a, **k: traced.append(1) or run_rounds(*a, **k))
    jobs = jobs_on(data, GRID)
    found = dict(JobGroup(jobs).run(progress.append))
    assert len(traced) == 1
    assert progress == sorted(progress)
    assert progress[-1] == len(found) == len(jobs)
    for at, job in enumerate(jobs):
        assert found[at].status == "done"
        assert found[at].history == single(job)


# CI: test_survivors_equal_the_whole_sweep_and_others_its_beginning_bit_for_bit, tests/sweeps/test_halving.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("vmapped", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_some_points_go_on_from_where_they_stopped_with_the_same_program(data, vmapped):
    """Those that go on are fewer than a device's slots, and where they stand is a matter of their own states."""
    jobs = jobs_on(data, GRID)
    group = JobGroup(jobs, vmapped=vmapped)
    stopped, whole = dict(group.run(until=2)), dict(group.run())
    left = {at: stopped[at] for at in (5, 1, 2)}
    part = group.of([jobs[at] for at in left])
    assert (part.compiled is group.compiled) == (not vmapped)
    found = dict(part.run(before=dict(enumerate(left.values()))))
    assert [end.status for end in stopped.values()] == ["stopped"] * len(jobs)
    for place, at in enumerate(left):
        assert found[place].status == "done"
        if vmapped:
            losses = [[each.test_loss for each in ends[at].history] for ends, at in ((found, place), (whole, at))]
            np.testing.assert_allclose(*losses, rtol=1e-5)
        else:
            assert found[place].history == whole[at].history
            assert stopped[at].history == whole[at].history[:2]
    swapped = dict(part.run(before=dict(enumerate(reversed(left.values())))))
    assert swapped[0].history[2:] != found[0].history[2:]  # states of others end elsewhere


@pytest.mark.slow
def test_a_point_in_a_fixed_order_equals_its_single_run_bit_for_bit(data):
    jobs = [job._replace(parts=3) for job in jobs_on(data, GRID[1:2])]
    assert group_jobs([*jobs, jobs[0]._replace(parts=None)]) == [[0, 1], [2]]
    for job, outcome in zip(jobs, outcomes(jobs), strict=True):
        assert outcome.history == single(job, execution=fdp.execution.all_devices(parts=3))


@pytest.mark.exhaustive
def test_all_at_once_equals_one_after_another_up_to_rounding(data):
    jobs = jobs_on(data, GRID)
    for one, other in zip(outcomes(jobs, vmapped=False), outcomes(jobs, vmapped=True), strict=True):
        for a, b in zip(one.history, other.history, strict=True):
            assert a.test_loss == pytest.approx(b.test_loss, rel=1e-5)
            assert a.round == b.round


@pytest.mark.slow
def test_partitions_seeds_rounds_and_data_sets_of_equal_shape_share_a_program():
    datas = [ragged_data(SIZES, seed=0), ragged_data(SIZES[::-1], seed=0), ragged_data(SIZES, seed=1, name="other")]
    datas.append(ragged_data([6, 6, 6, 6, 6], seed=0))  # another largest client, which these batches do not see
    datas.append(dataclasses.replace(datas[0], scale=3.0, shift=0.5))  # the same arrays, seen otherwise
    datas.append(dataclasses.replace(datas[0], rows=np.asarray(datas[0].rows)[::-1]))
    jobs = [job_of(GRID[1], data, MODEL, ROUNDS - at % 2, at, 1) for at, data in enumerate(datas)]
    assert len(group_jobs(jobs)) == 1
    for job, outcome in zip(jobs, outcomes(jobs), strict=True):
        assert outcome.history == single(job)
    epochs = [with_run(job, algorithm=dpnfl(batches="epochs")) for job in jobs]
    assert len(group_jobs(epochs)) == 2  # their steps follow the largest client


def jobs_on_small_clients(batches):
    """Two points whose clients have at least a batch of records, and two with a smaller client."""
    sizes = [[4, 6, 5, 8, 7], [3, 9, 6, 5, 7], [1, 9, 5, 8, 7], [2, 9, 5, 7, 7]]
    return [job_of(dpnfl(batch_size=3, batches=batches), ragged_data(of), MODEL, ROUNDS, 0, 1) for of in sizes]


def test_points_with_clients_smaller_than_a_batch_share_a_program_of_their_own():
    assert group_jobs(jobs_on_small_clients("without-replacement")) == [[0, 1], [2, 3]]


@pytest.mark.exhaustive  # CI: points of larger clients, above, and such clients in rounds/test_ragged_batches.py
@pytest.mark.parametrize("batches", ["without-replacement", "poisson"])
def test_points_with_clients_smaller_than_a_batch_equal_their_single_runs_bit_for_bit(batches):
    jobs = jobs_on_small_clients(batches)
    for job, outcome in zip(jobs, outcomes(jobs), strict=True):
        assert outcome.history == single(job)


@pytest.mark.slow
@pytest.mark.parametrize("vmapped", usual([False, True], [False]))
def test_a_point_that_diverges_says_so_and_takes_nobody_down(data, vmapped):
    steep = dpnfl(learning_rate=3e38, clip_norm=1e30)
    jobs = jobs_on(data, [GRID[0], steep, GRID[1]], seeds=(0,))
    assert len(group_jobs(jobs)) == 1
    found = outcomes(jobs, vmapped=vmapped)
    assert [o.status for o in found] == ["done", "diverged", "done"]
    with pytest.raises(errors.DivergedError) as caught:
        single(jobs[1])
    assert found[1].reason == str(caught.value)
    assert found[1].history == []


# CI: test_a_point_that_diverges_says_so_and_takes_nobody_down; of a run, tests/rounds/test_round.py
@pytest.mark.exhaustive
def test_a_test_loss_that_is_not_finite_ends_a_point(data):
    spoiled = dataclasses.replace(data, x_test=np.full_like(np.asarray(data.x_test), np.nan))
    (found,) = outcomes([job_of(GRID[0], spoiled, MODEL, 2, 0, 1)])
    assert (found.status, found.history) == ("diverged", [])
    with pytest.raises(errors.ConfigurationError) as caught:
        fdp.simulate(GRID[0], spoiled, model=MODEL, rounds=2)
    assert found.reason == str(caught.value)
    assert "test records without one before the first round" in found.reason


@pytest.mark.slow
def test_a_secure_sum_that_overflows_ends_its_point_only():
    data = ragged_data([4, 4, 4])
    x = np.asarray(data.x) * np.repeat([1, 1e6, 1], 4)[:, None].astype(np.float32)
    common = {"cohort_size": None, "batch_size": 2, "local_steps": 1, "secure": True}
    jobs = [
        job_of(fdp.fedavg(**common, learning_rate=rate), dataclasses.replace(data, x=x), MODEL, 3, 0, 1)
        for rate in (1e-7, 1.0)
    ]
    fine, lost = outcomes(jobs)
    assert (fine.status, lost.status) == ("done", "diverged")
    assert "secure sum overflowed in round 0" in lost.reason


@pytest.mark.slow
def test_a_dispatch_that_fails_loses_its_own_points_only(data):
    jobs = jobs_on(data, GRID, seeds=range(3), rounds=2)
    group = JobGroup(jobs)
    run_segment = group.compiled.run_segment

    def broken(points, *rest):
        if (np.asarray(points.algorithm.local.learning_rate) > 0.8).any():
            raise RuntimeError("out of memory\nsomewhere")
        return run_segment(points, *rest)

    group.compiled = group.compiled._replace(run_segment=broken)
    found = dict(group.run())
    assert len(found) == len(jobs)
    assert {number for number, outcome in found.items() if outcome.status == "failed"} == {6, 7, 8}
    assert {len(found[number].history) for number in range(6)} == {2}
    assert found[6].reason == "RuntimeError: out of memory somewhere"


@pytest.mark.exhaustive
def test_batches_fit_the_memory_by_the_compilers_own_account(data):
    jobs = jobs_on(data, GRID, seeds=range(6), rounds=2)
    whole = JobGroup(jobs, vmapped=True)
    assert whole.batches * whole.program.slots * len(whole.devices) >= len(jobs)
    least = JobGroup(jobs[:1], vmapped=True).compiled.bytes
    tight = JobGroup(jobs, vmapped=True, memory=(least + whole.compiled.bytes) / 2)
    assert tight.compiled.bytes < whole.compiled.bytes
    assert tight.batches > whole.batches
    for (_, one), (_, other) in zip(sorted(tight.run()), sorted(whole.run()), strict=True):
        assert one.history[-1].test_loss == pytest.approx(other.history[-1].test_loss, rel=1e-5)
    words = refusal(lambda: JobGroup(jobs, memory=1000.0))
    assert "memory of a device must be at least the" in words


@pytest.mark.slow
def test_another_way_to_run_is_taken_only_if_it_shows_the_same_numbers(data, monkeypatch):
    monkeypatch.setattr(engine, "TRIAL_S", 0.0)
    monkeypatch.setattr(engine, "TRIALS", 0)
    group = JobGroup(jobs_on(data, GRID))
    sample, observed = group.sample(), group.observe()
    rival = group.of(group.jobs)  # which stands for one that runs them all at once
    other = {job: jax.tree.map(lambda a: np.asarray(a) + 1, seen) for job, seen in observed.items()}
    for seen, factor, wanted in ((observed, 0.5, True), (observed, 1.0, False), (other, 0.5, False)):
        measured = engine.Sample(sample.round_s * factor, sample.evaluation_s * factor)
        monkeypatch.setattr(JobGroup, "vmapped_group", lambda self: rival)
        monkeypatch.setattr(JobGroup, "sample", lambda self, m=measured: m if self is rival else sample)
        monkeypatch.setattr(JobGroup, "observe", lambda self, s=seen: s if self is rival else observed)
        assert (engine.choose_fastest(group)[0] is rival) == wanted


@pytest.mark.slow
def test_a_short_point_is_not_looked_at_as_often_as_the_longest(data):
    jobs = [job_of(GRID[0], data, MODEL, rounds, 0, 1) for rounds in (2, 12, 2, 12)]
    group = JobGroup(jobs)
    run_segment, lasts = group.compiled.run_segment, []
    group.compiled = group.compiled._replace(run_segment=lambda *a: lasts.append(int(a[-1])) or run_segment(*a))
    found = dict(group.run())
    assert [len(found[at].history) for at in range(4)] == [2, 12, 2, 12]
    if len(group.devices) == 2:
        assert lasts.count(12) == 1
        assert max(lasts[: lasts.index(2) + 1]) == 2


REMEMBERED = {"clip_norm": 0.5, "noise_multiplier": 0.5, "cohort_size": 5}
STRUCTURES = {
    "scaffold, warm": (fdp.dp_scaffold, {"clip_norm": 0.7, "noise_multiplier": 0.5, "warm_start": True}),
    "adaptive clipping": (fdp.dp_fedavg, {"clip_norm": 0.5, "noise_multiplier": 0.5, "adaptive_clip": True}),
    "secure sum": (fdp.cpfed, {"clip_norm": 0.5, "noise_multiplier": 0.5}),
    "importance sampling": (
        fdp.acs_pldp,
        {"noise_multiplier": 0.5, "sampling": "optimal", "probabilities": np.array([0.1, 0.2, 0.3, 0.2, 0.2])},
    ),
    "features": (fdp.rfedavg_plus, {"feature_strength": 0.1}),
    "losses": (fdp.q_fedavg, {"q": 1.0}),
    "epochs": (fdp.fedadam, {"batches": "epochs"}),
    "kept rule": (fdp.fedavg, {"local_rule": "momentum", "keep_rule": True}),
    "noise taken off": (
        fdp.dpnfl,
        {"clip_norm": 0.5, "noise_multiplier": 0.5, "local_rule": "adam_bc", "keep_rule": True},
    ),
    "noise taken off by the server": (
        fdp.addpnfl,
        {"clip_norm": 0.5, "noise_multiplier": 0.5, "second_moment": "unbiased"},
    ),
    "noise of the last rounds": (fdp.dp_ftrl, REMEMBERED | {"source": fdp.parts.StrategyNoise.of((1.0, 0.6, 0.3), 9)}),
    "noise of buffers": (fdp.dp_ftrl, REMEMBERED | {"source": fdp.parts.BufferedNoise(decays=[0.8], scales=[-0.3])}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(STRUCTURES, ["scaffold, warm"]))
def test_points_of_every_structure_equal_their_single_runs_bit_for_bit(name, data):
    make, options = STRUCTURES[name]
    model = TwoLayerModel(3, 4) if name == "features" else MODEL
    jobs = [
        job_of(make.of({**{**COMMON, "learning_rate": rate}, **options}), data, model, ROUNDS, seed, 1, True)
        for rate, seed in ((0.1, 0), (0.3, 1))
    ]
    assert len(group_jobs(jobs)) == 1
    for job, outcome in zip(jobs, outcomes(jobs, stop=2), strict=True):  # whatever their states hold
        assert outcome.history == single(job)


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", CATALOGUE)
def test_every_entry_sweeps_over_its_learning_rate(entry, data):
    options = COMMON | {"local_steps": 1 if entry == "dp_sgd" else 3, "cohort_size": 5 if entry == "dp_ftrl" else 3}
    options |= {"clip_norm": 0.5, "noise_multiplier": 0.5} if "clip_norm" in CATALOGUE[entry].options else {}
    model = TwoLayerModel(3, 4) if entry.startswith("rfedavg") else MODEL
    model = fdp.mlp(data.record_shape, data.classes, (4,)) if "head" in CATALOGUE[entry].options else model
    jobs = [job_of(CATALOGUE[entry].of(options | {"learning_rate": rate}), data, model, 2, 0, 1) for rate in (0.1, 0.3)]
    assert len(group_jobs(jobs)) == 1
    first, second = outcomes(jobs, stop=1)
    for outcome, job in ((first, jobs[0]), (second, jobs[1])):
        for seen, alone in zip(outcome.history, single(job), strict=True):
            # the probe of noise that the server adds is scalar arithmetic, which the compiler may contract
            assert (seen.noise_to_signal is None) == (alone.noise_to_signal is None)
            assert (seen.noise_to_signal or 0) == pytest.approx(alone.noise_to_signal or 0, rel=1e-6)
            assert seen._replace(noise_to_signal=None) == alone._replace(noise_to_signal=None)
    if entry not in ("local", "ifca"):  # whose shared model stays as it began
        assert first.history[-1].test_loss != second.history[-1].test_loss


# Sweeps over an algorithm value


@pytest.mark.exhaustive
def test_axes_name_fields_of_the_value_and_of_the_run(data):
    axes = {"learning_rate": [0.1, 0.3], "epsilon": [2.0, 8.0], "batches.size": [2, 3]}
    found = fdp.sweep(dpnfl(), data, rounds=2, seeds=2, delta=1e-2, model=MODEL, progress=False, axes=axes)
    assert found.axes == ("learning_rate", "epsilon", "batches.size")
    assert len(found.records) == 16
    for record in found.records[::5]:
        values = record["values"]
        algorithm = dpnfl(learning_rate=values["learning_rate"], batch_size=values["batches.size"])
        words = {"seed": values["seed"], "epsilon": values["epsilon"], "delta": 1e-2, "model": MODEL}
        run = fdp.run(algorithm, data, rounds=2, **words)
        assert record["history"][-1]["test_loss"] == run.test_loss
        assert record["guarantee"]["epsilon"] == run.guarantee.epsilon


@pytest.mark.exhaustive
def test_a_function_of_the_axes_makes_the_algorithm():
    def make(entry, clip_norm):
        return CATALOGUE[entry].of({**COMMON, "clip_norm": clip_norm, "noise_multiplier": 0.3})

    axes = {"entry": ["dpnfl", "addpnfl"], "clip_norm": {"log": [0.1, 10.0], "points": 3}}
    words = {"rounds": 1, "delta": 0.1, "model": MODEL, "progress": False}
    found = fdp.sweep(make, lambda seed: ragged_data(SIZES, seed=seed), axes=axes, **words)
    assert [record["values"]["clip_norm"] for record in found.records[:3]] == [0.1, 1.0, 10.0]
    assert {record["status"] for record in found.records} == {"done"}


FOUND = {"epsilon": 4.0, "delta": 0.1}
BAD = [
    ({"axes": {"learning_rate": ["a"]}}, "learning_rate must be of the type of 0.3, got 'a'"),
    ({"axes": {"batches.size": [2], "batch_size": [3]}}, "axes must be of different numbers"),
    ({"axes": None}, "axes must be names with lists or ranges, got None"),
    ({"axes": {"clip_nrom": [1.0]}}, "did you mean clip_norm"),
    ({"axes": {"size": [2]}, "algorithm": fdp.fedavg(**COMMON)}, "say cohort.size or"),
    ({"axes": {"learning_rate": [0.1, -1.0]}}, "1 of 2 points cannot run: learning_rate=-1, seed=0: learning_rate"),
    ({"axes": {"epsilon": [1.0]}, "delta": None}, "delta must be given"),
    ({"axes": {"delta": [0.1, 0.2]}}, "delta must be left out where it is an axis, got 0.1"),
    ({"axes": {"noise_multiplier": [1.0]}} | FOUND, "noise_multiplier must be left out where epsilon finds the noise"),
    ({"data": fdp.data.Dataset("raw", *[np.zeros((2, 1))] * 4, 2)}, "data must be a fedjax_dp.data.FederatedData"),
    ({"algorithm": "dpnfl"}, "algorithm must be an Algorithm, or a function that makes one, got str"),
    ({"algorithm": lambda learning_rate: None}, "must be one that returns an Algorithm, got NoneType"),
    ({"search": "tpe"}, "search must be left out without trials"),
    ({"chunk_size": 0}, "chunk_size must be an integer of at least 1"),
    ({"evaluate_every": -1}, "evaluate_every must be an integer of at least 1"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_what_cannot_be_swept_is_refused_in_one_line_before_anything_runs(change, words, data):
    options = {"algorithm": dpnfl(), "data": data, "delta": 0.1, "rounds": 1, "axes": {"learning_rate": [0.1, 0.2]}}
    assert words in refusal(lambda: fdp.sweep(progress=False, **options | change))


@fdp.value
class Failing(fdp.parts.Correction):
    def gradient(self, gradient, params, step, client, records):
        raise TypeError("not of\nthis kind")


def test_own_code_that_fails_in_a_program_is_named_in_one_line_with_its_points(data):
    def failing(steps):
        plain = fdp.fedavg(**COMMON | {"local_steps": steps})
        return dataclasses.replace(plain, local=dataclasses.replace(plain.local, corrections=(Failing(),)))

    axes = {"steps": [1, 2]}
    line = refusal(lambda: fdp.sweep(failing, data, rounds=1, axes=axes, model=MODEL, progress=False))
    assert line.startswith("2 of 2 points cannot run: steps=1, seed=0: test_engine.py line ")
    assert ": TypeError: not of this kind" in line


def test_what_somebody_who_waits_reads():
    watch, task = Watch(4), describe_task(Own())
    for at, (loss, status) in enumerate(((0.5, "done"), (0.2, "done"), (0.1, "diverged"))):
        watch.add({"status": status, "task": task, "history": [{"test_loss": loss}], "values": {"rate": at}})
    texts = watch.texts(1.0)
    assert texts["points"] == "3 of 4, 1 failed"
    assert texts["best so far"] == "test_loss 0.2000 (rate=1)"


def test_the_share_of_a_sweep_that_is_done_weighs_its_programs_by_their_time(monkeypatch):
    """An hour's point alone, then two of five minutes: after the first, 60 of 70 minutes are done."""
    shares = []
    monkeypatch.setattr(Watch, "texts", lambda self, share: shares.append(share) or {})

    class Group:
        def __init__(self, dispatches):
            self.dispatches = dispatches

        def run(self, progress, **options):
            for done in self.dispatches:
                progress(done)
            return iter(())

    groups, point = [Group([0.5, 1]), Group([1, 2])], types.SimpleNamespace(id="")
    plan = runner.SweepPlan(groups, [[point], [point, point]], [3600.0, 600.0], 0.0)
    runner.execute(plan, lambda *kept: None, Screen(quiet=True))
    assert shares == pytest.approx([30 / 70, 60 / 70, 65 / 70, 1])
