"""The command line as a user meets it."""

import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import test_account_cli
import test_audit_cli
from helpers import usual

import fedjax_dp
from fedjax_dp import algorithms, errors
from fedjax_dp.experiments import config, environment, groups
from fedjax_dp.options import of_class
from fedjax_dp.privacy.terms import ACCOUNTANTS
from fedjax_dp.rounds import simulation
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import account, audit, bench, data, run, sweep
from fedjax_dp.tools.cli.commands import COMMANDS
from fedjax_dp.tools.cli.run import RunOptions

QUICK = ["--rounds", "4", "--local-steps", "2", "--evaluate-every", "2", "--checkpoint-every", "1"]
OWN = of_class(RunOptions)


@pytest.mark.slow
def test_help_and_typing_errors_load_no_jax():
    """Two seconds of every one: nothing of this needs a device."""
    lines = [["run", "--epsilonn", "1"], ["run", "--rounds", "x"], ["help"], ["run", "--algorithm", "dpnfl", "--help"]]
    lines += [[name, "--help"] for name in COMMANDS]
    program = f"""
import sys
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import account, audit, bench, data, run, sweep
for words in {lines}:
    try:
        cli.main(words)
    except SystemExit:
        pass
    late = [name for name in ("jax", "optax", "flax", "matplotlib", "pandas") if name in sys.modules]
    assert not late, (words, late)"""
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


@pytest.mark.slow
def test_default_run_trains_privately_well_above_chance(capsys):
    assert cli.main(["run", "--json"]) == 0
    out = capsys.readouterr()
    content = json.loads(out.out)
    assert out.out.count("\n") == 1
    assert not {"\r", "\x1b"} & {*out.err}  # progress is for terminals
    assert content["test_accuracy"] > 0.7
    assert 3.9 < content["guarantee"]["epsilon"] <= 4.0
    names = "algorithm dataset rounds seed test_accuracy test_loss history guarantee timing versions device"
    assert {*names.split()} <= set(content)
    of_promise = "epsilon delta unit adjacency view accountant epsilon_min epsilon_median noise_multiplier claims"
    assert {*of_promise.split()} <= set(content["guarantee"])
    assert {"compile_s", "round_s_median", "total_s"} <= set(content["timing"])
    assert {"round", "test_accuracy", "test_loss"} <= set(content["history"][0])
    assert content["history"][-1]["round"] == content["rounds"] == 40


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "r"
    assert cli.main(["run", *QUICK, "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def folder(finished):
    """A copy of one's own of a finished run."""
    return pathlib.Path(shutil.copytree(finished, "r"))


@pytest.mark.slow
def test_run_folder_holds_everything_and_a_picture_of_the_run(finished):
    folder = finished
    assert config.read(folder / "config.toml")["rounds"] == 4
    assert [point["round"] for point in json.loads((folder / "metrics.json").read_text())] == [2, 4]
    result = json.loads((folder / "result.json").read_text())
    assert json.loads((folder / "guarantee.json").read_text()).items() >= result["guarantee"].items()
    assert {"versions", "device", "checksums", "devices"} <= set(json.loads((folder / "run.json").read_text()))
    picture = plt.imread(folder / "run.png")
    assert picture.shape[1] > 800
    assert picture.std() > 0.05


@pytest.mark.slow
def test_human_output_is_one_guarantee_and_no_traceback(capsys):
    assert cli.main(["run", *QUICK]) == 0
    out = capsys.readouterr().out
    assert " at delta 0.001 for one record of one client (replace-one neighbours)" in out
    assert len(out.splitlines()) == 4
    assert pathlib.Path("runs/digits-dpnfl-s0").is_dir()
    assert cli.main(["run", *QUICK]) == 0  # a second run gets a folder of its own
    assert pathlib.Path("runs/digits-dpnfl-s0-2").is_dir()


@pytest.mark.slow
def test_the_result_comes_first_and_detail_folds(capsys):
    labels = {}
    for flag in ([], ["--quiet"], ["--verbose"]):
        assert cli.main(["run", *QUICK, "--train-metrics", "true", *flag]) == 0
        out = capsys.readouterr()
        labels[" ".join(flag)] = list(dict.fromkeys(line[:10].strip() for line in out.out.splitlines()[1:]))
        assert out.out.startswith("dpnfl on digits: test accuracy")
        assert (out.err == "") == (flag == ["--quiet"])
        assert ("found the least noise" in out.err) == (flag != ["--quiet"])
        for text in ("of gradients clipped; half is usual", "times the signal; above 1 is usual", "protects nobody"):
            assert (text in out.out) == (flag == ["--verbose"])
    assert labels["--quiet"] == ["privacy", "folder"]
    assert labels[""] == ["privacy", "folder", "next"]
    more = ["noise", "by round", "assumes", "claim", "internals", "", "traffic", "time"]
    assert labels["--verbose"] == [*labels[""], *more]


@pytest.mark.slow
def test_toml_and_flags_are_the_same_configuration(capsys):
    assert cli.main(["run", *QUICK, "--clip-norm", "0.5", "--seed", "3", "--out", "a", "--json"]) == 0
    by_flags = json.loads(capsys.readouterr().out)
    text = pathlib.Path("a/config.toml").read_text()
    pathlib.Path("b.toml").write_text(text.replace('out = "a"', 'out = "b"'))
    assert cli.main(["run", "b.toml", "--json"]) == 0
    by_file = json.loads(capsys.readouterr().out)
    assert by_file["history"] == by_flags["history"]
    assert by_file["guarantee"] == by_flags["guarantee"]


def test_what_run_takes_beside_its_configuration_is_no_key_of_a_file():
    assert set(OWN) <= set(groups.TAKEN_OFF)


def help_of(capsys, monkeypatch, *arguments):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments])
    assert stop.value.code == 0
    return capsys.readouterr().out


def shown_by(capsys, monkeypatch, *arguments):
    return help_of(capsys, monkeypatch, "run", *arguments)


def flags_in(out):
    return set(re.findall(r"^\W (--[a-z0-9-]+)", out, re.MULTILINE))


def test_version_help_and_exit_codes_are_told(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedjax-dp {fedjax_dp.__version__}\n"
    assert cli.main(["help"]) == 0
    assert "exit codes: 0 done; 1 an audit found a violation" in capsys.readouterr().out
    for words in (["help", "best"], ["best", "--help"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 0
        assert "--epsilon-at-most" in capsys.readouterr().out


def test_versions_are_those_that_run_whatever_an_older_installation_says(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"old {name}")
    versions = environment.versions()
    assert versions["fedjax-dp"] == fedjax_dp.__version__
    assert versions["jax"] == "old jax"


SCREENS = [
    *([name] for name in COMMANDS),
    *(["run", "--algorithm", name] for name in algorithms.CATALOGUE),
    *(["run", "--help", group] for group in ("run", *groups.HELP_GROUPS)),
    ["audit", "--help", "audit"],
]


@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_help_fits_one_screen(words, capsys, monkeypatch):
    out = help_of(capsys, monkeypatch, *words, *([] if "--help" in words else ["--help"]))
    assert len(out.splitlines()) <= 45
    assert max(map(len, out.splitlines())) <= 100


def test_the_first_page_says_of_what_most_runs_need_what_it_is_its_default_and_an_example(capsys, monkeypatch):
    out = shown_by(capsys, monkeypatch, "--help")
    rows = [line for line in out.splitlines() if line.startswith("  --") and "GROUP" not in line]
    assert 18 <= len([row for row in rows if "NAME --help" not in row and "--help-all" not in row]) <= 20
    assert "  --rounds 50            number of rounds [40]\n" in out
    assert re.search(r"  --noise-multiplier 2 +standard deviation of the noise .*\[from epsilon\]", out)
    assert all(group in out for group in groups.HELP_GROUPS)


def test_the_screens_of_groups_name_every_option(capsys, monkeypatch):
    for name, options in groups.groups_of(*algorithms.CATALOGUE.values()).items():
        out = shown_by(capsys, monkeypatch, "--help", name)
        assert all(re.search(rf"{option.flag}\b", out) for option in options.values()), name


OWN_COHORT = """import fedjax_dp as fdp

@fdp.value
class Alternate(fdp.parts.Cohort):
    size: int = fdp.structure()
    groups: int = fdp.structure(default=2)
"""


@pytest.mark.parametrize("help", [["--help"], ["--help", "training"], ["--help-all"]], ids=" ".join)
def test_help_lists_the_options_of_a_user_defined_part_that_the_command_names(capsys, monkeypatch, help):
    pathlib.Path("mine.py").write_text(OWN_COHORT)
    assert "--groups" in shown_by(capsys, monkeypatch, "--cohort", "mine.py:Alternate", *help)
    assert "--groups" not in shown_by(capsys, monkeypatch, *help)


def test_a_flag_that_lacks_its_end_leads_to_the_shortest_one(capsys):
    pathlib.Path("mine.py").write_text(OWN_COHORT)
    assert cli.main(["run", "--cohort", "mine.py:Alternate", "--group", "2"]) == 2
    assert "did you mean --groups?" in capsys.readouterr().err


# Those of bench and audit take minutes; CI: a file to begin with, test_new.py, and runs of sweeps, tests/sweeps.
LONG = [pytest.param(page, marks=pytest.mark.exhaustive) for page in (audit.PAGE, bench.PAGE, sweep.PAGE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [run.PAGE, data.PAGE, account.ACCOUNT, account.CALIBRATE, *LONG], ids=lambda one: one.purpose
)
def test_examples_of_help_run_as_they_stand(page):
    for words in page.examples:
        assert cli.main(shlex.split(words)) == 0, words


def test_all_help_shows_every_option_there_is_with_its_default(capsys, monkeypatch):
    out = shown_by(capsys, monkeypatch, "--help-all")
    everything = groups.options_of() | OWN
    assert flags_in(out) == {option.flag for option in everything.values()}
    assert len(re.findall(r"default:\s", out)) == len([one for one in everything.values() if not one.about.switch])
    output = " ".join(out.replace("│", " ").split())
    assert "dp_fedavg: learning rate of the clip norm [default: 0.2]" in output
    assert "only their sum is seen [default: by algorithm: cpfed: true; else false]" in output
    assert "dp_fedavg, dp_ftrl: clipping norm S: L2 bound on a client's update" in output
    assert "[default: by algorithm: dp_fedavg, dp_ftrl: 0.5;" in output
    assert "no epsilon (record, scale, none); acs_pldp:" in output


@pytest.mark.parametrize("entry", algorithms.CATALOGUE)
def test_all_help_of_an_algorithm_shows_what_it_takes_and_nothing_else(capsys, monkeypatch, entry):
    out = shown_by(capsys, monkeypatch, "--algorithm", entry, "--help-all")
    of_privacy = {f"--{name.replace('_', '-')}" for name in vars(groups.PrivacyConfig())}
    taken = {option.flag for option in (groups.options_of(algorithms.CATALOGUE[entry]) | OWN).values()}
    taken -= set() if algorithms.CATALOGUE[entry].private else of_privacy
    assert flags_in(out) == taken
    defaults = config.RunSpec.of({"algorithm": entry}).flat()
    assert f"number of rounds [default: {defaults['rounds']}]" in out
    assert "[default: ]" not in out


def test_help_of_an_algorithm_begins_with_what_few_others_take(capsys, monkeypatch):
    out = shown_by(capsys, monkeypatch, "--algorithm", "dp_ftrl", "--help")
    assert out.index("Kairouz et al. 2021") < out.index("--bands INT") < out.index("--rounds 50")


BAD = [
    ([], "usage: fedjax-dp run"),
    (["rnu"], "command must be one of run, new, export, sweep, best,"),
    (["run", "--epsilonn", "1"], "did you mean --epsilon?"),
    (["run", "--help", "trainig"], "did you mean training?"),
    (["run", "--hlep"], "got '--hlep'; did you mean --help?"),
    (["run", ""], "the first argument must be given, got an empty word"),
    (["run", "--out", ""], "--out must be given, got an empty word"),
    (["run", "--quiet", "--verbose"], "--quiet and --verbose must be one of them, got both"),
    (
        ["run", "--algorithm", "dp_fedavg", "--view", "uploads"],
        "(epsilon was not set: it is the default of dp_fedavg on digits)",
    ),
    (["run", "--epsilon", "1e300"], "epsilon must be at most 1,000,000, got 1e+300"),
    (["run", "--epsilon", "1", "--epsilon-high", "inf"], "epsilon_high must be positive and finite, got inf"),
    (["run", "--rounds", "1000000000"], "rounds x local_steps must be at most 100,000,000, got 1,000,000,000 x 10"),
    (["run", "--deterministic", "6"], "deterministic must be at most the 5 clients of a cohort, got 6"),
    (["run", "--algorithm", "dp_ftrl", "--bands", "1000000000"], "bands must be an integer from 1 to 10,000"),
    (["run", "--seed", "4294967296"], "seed must be an integer in [0, 2^32), got 4294967296"),
    (["run", "--rounds", "ten"], "--rounds must be an integer, got 'ten'"),
    (["run", "--rounds"], "--rounds must be followed by a value"),
    (["run", "--out", "--x"], "--out must be followed by a value, got nothing; or --out=--x if that is it"),
    (["run", "--out=--x", "--rounds", "0"], "rounds must be"),
    (["run", "--normalise", "--epsilon", "4"], "--normalise must be followed by a value"),
    (["run", "--algorithm", "dpnlf"], "got 'dpnlf'; did you mean dpnfl?"),
    (["run", "--cohort-size", "11"], "cohort_size must be at most the 10 clients, got 11"),
    (["run", "--num-clients", "2000"], "num_clients must be at most the 1437 records"),
    (
        ["run", "--epsilon", "0"],
        "epsilon must be positive and finite, got 0.0; for no privacy take an algorithm without",
    ),
    (["run", "--delta", "0"], "got 0.0; take one well below 1 / records, such as 1e-5"),
    (["run", "--accountant", "tcdp"], "tCDP subsampling needs a batch rate in (0, 0.1], got 0.1399"),
    (["run", "--accountant", "tcdp", "--batches", "poisson"], "use accountant pld"),
    (["run", "--accountant", "gaussian"], "the exact Gaussian formula needs unsampled sums"),
    (["run", "--view", "upload"], "did you mean uploads?"),
    (["run", "--algorithm", "fedavg", "--epsilon", "1"], "epsilon must be left out for fedavg"),
    (["run", "--epsilon", "1", "--noise-multiplier", "1"], "epsilon must be left out when noise_multiplier is given"),
    (["run", "--dataset", "mnist", "--data-dir", "absent"], "data_dir must be an existing folder, got absent"),
    (["run", "absent.toml"], "configuration file must be an existing TOML file, got absent.toml; it is looked for in"),
    (["run", "--resume", "absent"], "run folder must be an existing folder, got absent"),
    (["best", "--sweep", "x"], "--sweep must be left out, got a flag; give its value alone"),
    (["run", "--out", "full"], "out must be a new or empty folder, got full"),
    (["run", "--batches", "full", "--batch-size", "5"], "batch_size must be left out with batches full"),
    (["run", "--dataset", "mnist:x"], "dataset must be mnist without a path"),
    (["run", "--b1", "1", "--algorithm", "addpnfl"], "b1 must be in [0, 1), got 1.0"),
    (["run", "--dtype", "float16"], "dtype must be one of float32, bfloat16, got 'float16'"),
    (
        ["run", "--algorithm", "fedavg", "--mu", "0.1"],
        "mu must be left out for fedavg, which does not take it, got 0.1; it belongs to fedprox",
    ),
    (["run", "--algorithm", "rfedavg", "--model", "logistic"], "use --model mlp"),
    (["run", "--view", "secure_sum"], "here the server sees every upload"),
    (["run", "--secure", "maybe"], "--secure must be true or false"),
    *test_account_cli.BAD,
    *((["audit", *words], expected) for words, expected in test_audit_cli.BAD),
]


@pytest.mark.parametrize(
    ("words", "expected"), BAD, ids=[" ".join(words[:1] + words[1:][-6:]) or "nothing" for words, _ in BAD]
)
def test_bad_input_ends_in_one_line_with_code_2_before_anything_compiles(words, expected, capsys):
    pathlib.Path("full").mkdir()
    pathlib.Path("full/mine.txt").write_text("precious")
    before = simulation.advance._cache_size()
    assert cli.main(words) == 2
    out = capsys.readouterr()
    assert expected in out.err
    assert words == [] or len([line for line in out.err.splitlines() if line.startswith("fedjax-dp:")]) == 1
    assert "Traceback" not in out.err
    assert out.out == ""
    assert simulation.advance._cache_size() == before
    assert pathlib.Path("full/mine.txt").read_text() == "precious"
    assert [path.name for path in pathlib.Path().iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds = ", "must be valid TOML"),
        ("roundz = 3", "did you mean rounds?"),
        ("quiet = true", "quiet must be left to the command line, got True; fedjax-dp run c.toml --quiet"),
        ('track = "mlflow"', "track must be left to the command line, got mlflow; fedjax-dp run c.toml --track"),
    ],
)
def test_bad_toml_ends_in_one_line(text, expected, capsys):
    pathlib.Path("c.toml").write_text(text)
    assert cli.main(["run", "c.toml"]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.slow
def test_divergence_stops_with_round_and_clients_and_keeps_the_last_good_checkpoint(capsys):
    words = "run --algorithm fedavg --rounds 30 --learning-rate 1e38 --schedule constant --l2 0.4"
    words += " --checkpoint-every 1 --evaluate-every 1 --out d"
    assert cli.main(words.split()) == 1
    err = capsys.readouterr().err
    assert "diverged in round" in err
    assert "clients" in err
    assert not pathlib.Path("d/result.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_resume_of_another_configuration_is_refused(capsys):
    assert cli.main(["run", "--resume", "r", "--rounds", "9"]) == 2
    words = "rounds of the resumed run must be 4, as its noise was found for a budget that so many rounds spend"
    assert words in capsys.readouterr().err
    assert cli.main(["run", "--resume", "r", "--rounds", "3"]) == 2
    assert "rounds of the resumed run must be 4, as it began with, or more, got 3" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_resume_of_another_version_is_refused(capsys):
    about = json.loads(pathlib.Path("r/run.json").read_text())
    for absent in ("model_devices", "format"):
        pathlib.Path("r/run.json").write_text(json.dumps({name: about[name] for name in about if name != absent}))
        for words in (["run", "--resume", "r"], ["report", "r"], ["export", "r", "p.npz"], ["plot", "r"]):
            assert cli.main(words) == 2
            err = capsys.readouterr().err
            assert "run folder must be written by this version, got r, of another version; fedjax-dp run r/con" in err


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([], []),
        pytest.param(["--deterministic", "4", "--devices", "1"], ["--devices", "2"], marks=pytest.mark.slow),
    ],
)
def test_interrupted_folder_resumes_bit_for_bit(first, then, monkeypatch):
    if then and len(jax.devices()) < 2:
        pytest.skip("there is one device: run with JAX_NUM_CPU_DEVICES=2")
    assert cli.main(["run", *QUICK, *first, "--out", "whole"]) == 0
    original = simulation.advance

    def failing(algorithm, state, *rest, **named):
        if int(state.round) == 3:
            raise KeyboardInterrupt
        return original(algorithm, state, *rest, **named)

    monkeypatch.setattr(simulation, "advance", failing)
    assert cli.main(["run", *QUICK, *first, "--out", "cut"]) == 130
    monkeypatch.setattr(simulation, "advance", original)
    assert cli.main(["run", "--resume", "cut", *then]) == 0
    whole, cut = (fedjax_dp.open_run(name) for name in ("whole", "cut"))
    assert (cut.history, cut.guarantee) == (whole.history, whole.guarantee)
    for a, b in zip(*map(jax.tree.leaves, (whole.params, cut.params)), strict=True):
        np.testing.assert_array_equal(a, b)


INTERRUPTED_TWICE = """
import atexit, os, signal, sys
from fedjax_dp.tools import cli

atexit.register(os.kill, os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv, cli._run = ["fedjax-dp", "run"], lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.exit(cli.main())
"""


def test_a_second_interrupt_ends_at_once_and_adds_no_traceback():
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_TWICE], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "fedjax-dp: interrupted\n")


PRIVATE_ENTRIES = [name for name, entry in algorithms.CATALOGUE.items() if entry.private]


def runs(entry, capsys, *words):
    assert cli.main(["run", "--algorithm", entry, *words, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["algorithm"] == entry
    assert (output["traffic"]["up"] > 0) == (entry != "local")
    promise = output["guarantee"]
    assert (promise["epsilon"] is not None) == (entry in PRIVATE_ENTRIES)
    if promise["epsilon"] is not None:
        assert promise["epsilon"] <= (output["config"]["epsilon_high"] or output["config"]["epsilon"]) * (1 + 1e-6)
    return output


@pytest.mark.slow
@pytest.mark.parametrize("entry", usual(algorithms.CATALOGUE, list(algorithms.CATALOGUE)[16:17]))
def test_every_entry_runs_and_prints_its_guarantee(entry, capsys):
    runs(entry, capsys, *QUICK, "--num-clients", "6", "--local-steps", "1" if entry == "dp_sgd" else "2")


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", algorithms.CATALOGUE)
def test_every_entry_runs_on_mnist(entry, capsys, mnist_dir):
    runs(entry, capsys, "--dataset", "mnist", "--data-dir", str(mnist_dir), "--rounds", "2")


@pytest.mark.exhaustive
def test_a_run_in_bfloat16_learns_under_the_same_guarantee(tmp_path, capsys):
    results = {}
    for dtype in ("float32", "bfloat16"):
        assert cli.main(["run", "--dtype", dtype, "--out", str(tmp_path / dtype), "--json"]) == 0
        results[dtype] = json.loads(capsys.readouterr().out)
    assert results["bfloat16"]["guarantee"] == results["float32"]["guarantee"]
    assert 0 < abs(results["bfloat16"]["test_loss"] - results["float32"]["test_loss"]) < 0.05


@pytest.mark.exhaustive
def test_the_delta_of_mnist_is_said_to_be_the_papers(capsys, mnist_dir):
    words = ["run", "--dataset", "mnist", "--data-dir", str(mnist_dir), "--rounds", "1", "--local-steps", "1"]
    origin = "it is that of the dpnfl paper, the default on mnist"
    assert cli.main([*words, "--quiet"]) == 0
    assert origin in capsys.readouterr().out
    assert cli.main([*words, "--quiet", "--delta", "1e-2"]) == 0
    assert origin not in capsys.readouterr().out


@pytest.mark.slow
def test_flags_are_read_alike_where_a_tracker_has_loaded_pydantic():
    words = ["run", "--algorithm", "fedavg", "--model", "mlp.py:network", "--hidden", "8,4", "--train-metrics"]
    program = f"""
import pydantic
from fedjax_dp.tools import cli
assert [cli.main([*{words}, last]) for last in ("maybe", "true")] == [2, 2]"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()
    assert first == "fedjax-dp: --train-metrics must be true or false, got 'maybe'"
    assert second == "fedjax-dp: hidden must be left out unless model is mlp, got 8,4; drop it"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--lr", "--learning-rate"),
        ("--clients", "--num-clients"),
        ("--optimizer", "--local-rule"),
        ("--sigma", "--noise-multiplier"),
        ("--epochs", "--local-steps"),
        ("--max-grad-norm", "--clip-norm"),
        ("--epsilon-budget", "--epsilon"),
        ("--num-sampled-clients", "--cohort-size"),
        ("--num-supernodes", "--num-clients"),
        ("--strategy", "--algorithm"),
        ("--sample-rate", "--poisson-rate"),
        ("--poisson-sampling", "--batches"),
        ("--label", "--label-column"),
        ("--tokenizer", "--vocabulary"),
        ("--max-length", "--length"),
    ],
)
def test_names_of_other_tools_lead_to_the_right_ones(capsys, theirs, ours):
    assert cli.main(["run", theirs, "3"]) == 2
    assert f"did you mean {ours}?" in capsys.readouterr().err


@pytest.mark.parametrize("theirs", ["make_private", "PrivacyEngine"])
def test_classes_and_functions_of_other_tools_lead_to_entries(theirs):
    with pytest.raises(AttributeError, match="did you mean dp_fedavg_record"):
        getattr(fedjax_dp, theirs)


def test_every_name_that_is_offered_for_another_is_an_option_an_entry_or_an_accountant(capsys):
    for command in ("run", "account"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help-all"])
    flags = set(re.findall(r"--[a-z][a-z0-9-]*", capsys.readouterr().out))
    known = {name for entry in algorithms.CATALOGUE.values() for name in entry.options}
    known |= {flag[2:].replace("-", "_") for flag in flags} | {*algorithms.CATALOGUE} | {*ACCOUNTANTS}
    for ours in errors.ELSEWHERE.values():
        assert {ours} <= known if isinstance(ours, str) else {*ours} <= known
