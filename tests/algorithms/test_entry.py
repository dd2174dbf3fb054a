"""An entry is written in one place: configuration, flags, help, checks, table and axes follow from it."""

import inspect
import json
import pathlib
import pickle
import tomllib
from typing import Annotated, Literal, Unpack

import jax
import jax.numpy as jnp
import pytest

import fedjax_dp as fdp
from fedjax_dp.algorithms import CATALOGUE, Common, Entry, assemble, entry
from fedjax_dp.algorithms.assemble import ClipNorm, NoiseMultiplier
from fedjax_dp.data import DATASETS
from fedjax_dp.experiments import config, groups
from fedjax_dp.options import about
from fedjax_dp.parts.corrections import Proximal
from fedjax_dp.parts.record_privacy import RecordGaussian
from fedjax_dp.sweeps.plan import SweepConfig, expand
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import catalogue_tables

COMMON = {"cohort_size": 2, "batch_size": 3, "local_steps": 1, "learning_rate": 0.1}


@entry("Somebody 2026, Algorithm 1", defaults={"estimator": "mean"}, presets={"local_steps": 3})
def pulled(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    pull: float = 0.1,
    form: Literal["half", "full"] = "half",
    slack: Annotated[float, about("", beside={"form": "full"})] = 0.0,
    **common: Unpack[Common],
) -> fdp.Algorithm:
    """DP-SGD pulled to the received model (somebody, 2026).

    Args:
        pull: how strongly
        form: "half" or "full" of the square
        slack: taken off the pull
    """
    privatizer = RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    strength = pull if form == "half" else 2 * (pull - slack)
    return assemble(common, privatizer=privatizer, corrections=(Proximal(strength=strength),))


@pytest.fixture(autouse=True)
def _added(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setitem(CATALOGUE, "pulled", pulled)


def run(capsys, *flags):
    assert cli.main(["run", "--algorithm", "pulled", "--rounds", "2", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_its_options_are_flags_fields_of_a_file_and_axes_of_a_sweep(capsys):
    by_flags = run(capsys, "--pull", "0.3", "--form", "full", "--slack", "0.1", "--out", "a")
    assert {"pull": 0.3, "form": "full", "slack": 0.1, "local_steps": 3}.items() <= by_flags["config"].items()
    assert by_flags["guarantee"]["epsilon"] <= 4
    by_file = config.RunSpec.of(tomllib.loads(pathlib.Path("a/config.toml").read_text()))
    assert by_file.flat().items() >= {"pull": 0.3, "form": "full", "slack": 0.1, "local_steps": 3}.items()
    points = expand(SweepConfig(base={"algorithm": "pulled"}, axes={"pull": {"log": [0.1, 10.0], "points": 3}}))
    assert [point.config.options["pull"] for point in points] == [0.1, 1.0, 10.0]


@pytest.mark.slow
def test_its_help_and_its_row_of_the_catalogue_are_made(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--algorithm", "pulled", "--help"])
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "pulled: DP-SGD pulled to the received model (somebody, 2026)." in out
    assert "--pull FLOAT how strongly [0.1]" in out
    assert '--form NAME "half" or "full" of the square: half, full [half]' in out
    assert "--bands" not in out
    with pytest.raises(SystemExit):
        cli.main(["run", "--help-all"])
    assert "pulled" in capsys.readouterr().out
    row = next(row for row in catalogue_tables.entry_rows() if row.entry == "pulled")
    assert (row.source, row.unit, row.view) == ("Somebody 2026, Algorithm 1", "record", "uploads")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--algorithm", "pulled", "--slack", "0.1"], "slack must be left out unless form is full, got 0.1; drop it"),
        (["--algorithm", "pulled", "--form", "hal"], "form must be one of half, full, got 'hal'; did you mean half?"),
        (["--algorithm", "pulled", "--pul", "1"], "did you mean --pull?"),
        (["--algorithm", "pulled", "--pull", "much"], "--pull must be a number, got 'much'"),
        (["--pull", "1.0"], "pull must be left out for dpnfl, which does not take it, got 1.0; it belongs to pulled"),
        (["--rounds", "9" * 12], "rounds must be at most 2,147,483,647"),
        (["--learning-rate", "1e50"], "learning_rate must be 0, or from"),
        (["bad.toml"], "a folder that can be written"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(capsys, flags, told):
    pathlib.Path("bad.toml").write_text('out = "x\\u0000y"\nrounds = 1\nalgorithm = "fedavg"\n')
    assert cli.main(["run", *flags]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_an_argument_that_follows_from_the_data_is_no_option_of_a_run(capsys, monkeypatch):
    def count(context, options):
        return {"clients": context.data.num_clients}

    @entry("me", fixes=("clients",), prepare=count)
    def counting(*, clients: int, **common: Unpack[Common]) -> fdp.Algorithm:
        """Pulls by the number of clients."""
        return assemble(common, corrections=(Proximal(strength=clients / 100),))

    monkeypatch.setitem(CATALOGUE, "counting", counting)
    pull = counting(clients=7, **COMMON).local.corrections[0]
    assert float(pull.strength) == pytest.approx(0.07)
    flags = ["run", "--algorithm", "counting", "--num-clients", "7", "--rounds", "1", "--quiet"]
    sizes = ["--cohort-size", "2", "--batch-size", "3", "--local-steps", "1", "--learning-rate", "0.1"]
    assert cli.main([*flags, *sizes]) == 0
    assert cli.main([*flags, *sizes, "--clients", "7"]) == 2
    assert "--clients" in capsys.readouterr().err


def test_from_python_an_entry_is_a_function_that_checks_its_options():
    made = pulled(clip_norm=1.0, **COMMON)
    assert isinstance(made, fdp.Algorithm)
    assert made == pulled(clip_norm=1.0, **COMMON, estimator="mean")
    for wrong, told in (
        ({}, "clip_norm, cohort_size, batch_size, local_steps, learning_rate must be given to pulled, got nothing"),
        ({**COMMON, "clip_norm": 1.0, "pul": 1.0}, "option must be one of .* did you mean pull"),
        ({**COMMON, "clip_norm": 1.0, "cohort": "poison"}, "cohort must be one of .* did you mean poisson"),
        ({**COMMON, "clip_norm": 1.0, "slack": 1.0}, "slack must be left out unless form is full"),
        ({**COMMON, "clip_norm": 1.0, "ring_bits": 64}, r"write secure=fdp\.parts\.SecureSum\(bits=\.\.\.\)"),
    ):
        with pytest.raises(fdp.ConfigurationError, match=told):
            pulled(**wrong)
    with pytest.raises(fdp.ConfigurationError, match="options by name"):
        pulled(1.0)


def test_an_entry_looks_like_its_constructor_and_can_be_sent():
    assert pickle.loads(pickle.dumps(pulled)) is pulled
    assert pickle.loads(pickle.dumps(fdp.dpnfl)) is fdp.dpnfl
    assert pulled.__name__ == "pulled"
    assert "how strongly" in pulled.__doc__


def test_every_option_of_every_entry_is_told_in_words():
    for name, one in CATALOGUE.items():
        assert one.source, name
        for option in one.options.values():
            assert option.about.text or not option.kinds, f"{name}: {option.name}"


@pytest.mark.slow
def test_what_follows_from_what_is_said_says_the_same_again():
    """Every entry with a data set, and every data set with some entries."""
    few = dict.fromkeys(DATASETS, ("fedavg", "dpnfl", "dp_fedavg", "fedadam")) | {"digits": CATALOGUE}
    for dataset, entries in few.items():
        named = f"{dataset}:x" if dataset in ("npz", "tfds", "store") else dataset
        for name in entries:
            for more in ({}, {"batches": "full"}, {"noise_multiplier": 1.0} if CATALOGUE[name].private else {}):
                found = config.RunSpec.of({"dataset": named, "algorithm": name, **more})
                assert config.RunSpec.of(found.flat()) == found


def test_numbers_of_local_rules_are_described_as_the_rules_have_them():
    for name, option in fdp.algorithms.RUN_OPTIONS.items():
        if "local_rule" in option.about.beside and name != "keep_rule":
            rules = {rule: fdp.parts.LOCAL_RULES[rule].hyperparameters for rule in fdp.parts.LOCAL_RULES}
            having = {rule: numbers for rule, numbers in rules.items() if name.removeprefix("local_") in numbers}
            values = dict.fromkeys(f"{numbers[name.removeprefix('local_')]:g}" for numbers in having.values())
            assert option.about.beside == {"local_rule": tuple(having)}
            assert option.about.default == " or ".join(values)
    stateful = {"local_rule": tuple(fdp.parts.LOCAL_RULES)[1:]}
    assert fdp.algorithms.RUN_OPTIONS["keep_rule"].about.beside == stateful


def test_a_signature_shows_every_option_with_its_type_and_default():
    shown = inspect.signature(pulled).parameters
    assert set(shown) < set(pulled.options)
    assert "pass_rounds" not in shown  # a number of a part
    assert "parts" in str(shown["cohort"])  # or a part
    assert str(shown["pull"]) == "pull: float = 0.1"
    assert str(shown["form"]) == "form: Literal['half', 'full'] = 'half'"
    assert str(shown["batch_size"]) == "batch_size: int | None"
    assert shown["estimator"].default == "mean"  # as the decorator has it
    assert "Annotated" not in str(inspect.signature(fdp.dpnfl))


@pytest.mark.parametrize("name", fdp.CATALOGUE)
def test_help_names_every_choice_that_an_option_has(name):
    """Whoever reads `help(fdp.dpnfl)` need not ask for a wrong cohort to learn which there are."""
    made = fdp.CATALOGUE[name]
    text = " ".join(made.help.split())
    shown = [made.options[one].choices for one in inspect.signature(made).parameters if one in made.options]
    assert any(shown)
    for choices in filter(None, shown):
        assert f"{', '.join(choices)} (" in text
    assert all(len(line) <= 120 for line in made.help.splitlines())


def test_a_bare_function_of_options_is_an_entry_too():
    def bare(*, rate: float, **common: Unpack[Common]) -> fdp.Algorithm:
        """A function.

        Args:
            rate: of the server
        """
        return assemble(common, server=fdp.parts.Server(hyperparameters={"learning_rate": rate}))

    made = Entry(bare)
    assert made.name == "bare"
    assert made.options["rate"].about.text == "of the server"
    assert not made.private
    assert made(rate=1.0, **COMMON) == fdp.fedavg(**COMMON)
    with pytest.raises(fdp.ConfigurationError, match="server must be left out for an entry with its own server"):
        made(rate=1.0, **COMMON, server="adam")


def halved(**common: Unpack[Common]) -> fdp.Algorithm:
    """A cohort of its own."""
    return assemble(common, cohort=fdp.parts.CyclicCohort(size=2))


def test_an_own_cohort_keeps_the_options_of_who_answers():
    options = {**COMMON, "cohort_size": None}
    drawn = fdp.parts.CyclicCohort(size=2)
    assert Entry(halved)(**options).cohort == drawn
    assert Entry(halved)(**options, dropout=0.5).cohort == fdp.parts.Dropout(cohort=drawn, rate=0.5)
    assert Entry(halved)(**options, first=1).cohort == fdp.parts.FirstResponders(cohort=drawn, size=1)
    for name, value in {"cohort_size": 3, "cohort": "poisson"}.items():
        with pytest.raises(fdp.ConfigurationError, match=f"{name} must be left out for an entry with its own"):
            Entry(halved)(**options | {name: value})


def nothing(**common: Unpack[Common]) -> fdp.Algorithm:
    return None


def named_as_the_run(*, rounds: int = 3, **common: Unpack[Common]) -> fdp.Algorithm:
    return assemble(common)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Entry(nothing, defaults=["mean"]), "defaults of nothing must be a mapping"),
        (lambda: Entry(nothing, defaults={"estimater": "mean"})(**COMMON), "did you mean estimator"),
        (lambda: Entry(nothing, defaults=lambda given: None)(**COMMON), "must be mappings of options"),
        (lambda: Entry(nothing)(**COMMON), "nothing must be a function that returns an Algorithm, got NoneType"),
        (lambda: groups.groups_of(Entry(named_as_the_run)), "must be a name that no field of a run has, got rounds"),
    ],
)
def test_entries_that_cannot_be_are_refused_in_one_line(made, told):
    with pytest.raises(fdp.ConfigurationError, match=told):
        made()


def test_presets_of_no_option_are_refused_and_help_needs_no_docstring(capsys, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "nothing", Entry(nothing, presets={"modell": "mlp"}))
    assert cli.main(["run", "--algorithm", "nothing"]) == 2
    assert "presets of nothing: an option must be" in capsys.readouterr().err
    monkeypatch.setitem(CATALOGUE, "nothing", Entry(nothing))
    with pytest.raises(SystemExit):
        cli.main(["run", "--algorithm", "nothing", "--help"])
    assert "nothing: an algorithm without a docstring" in capsys.readouterr().out


def test_noise_of_each_client_that_is_traced_is_refused_in_one_line_and_one_traced_number_is_taken():
    def scale(noise):
        return fdp.dpnfl(**COMMON, clip_norm=1.0, noise_multiplier=noise).local.privatizer.noise_multiplier

    assert jax.jit(scale)(jnp.float32(2.0)) == 2.0
    with pytest.raises(fdp.ConfigurationError, match="must be a number or an array, got"):
        jax.jit(scale)(jnp.ones(3))
