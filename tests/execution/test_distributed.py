"""Several processes share a run: the same run as in one, or one line that says why not."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from helpers import scattered_data, usual

import fedjax_dp
import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.execution import distributed
from fedjax_dp.experiments import run_folder as folder

PLAIN = ["--algorithm", "fedavg", "--rounds", "6", "--checkpoint-every", "3", "--evaluate-every", "2"]
SOURCE = pathlib.Path(fedjax_dp.__file__).parent.parent
LIMIT_S = 150


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def begin(words, *, devices=1, inside=(), environment=None, folder=None):
    """A process in a folder that sees `devices` CPU devices; `inside`: a command that runs it elsewhere."""
    return subprocess.Popen(
        [*inside, sys.executable, *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(SOURCE)}
        | (environment or {}),
    )


def ended(process):
    """Exit code, stdout, stderr."""
    try:
        told = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        told = process.communicate()
        pytest.fail(f"a process did not end: {told[1][-500:]}")
    return process.returncode, *told


def run_words(words, port, count, index):
    place = ["--coordinator", f"localhost:{port}", "--processes", str(count), "--process", str(index)]
    return ["-m", "fedjax_dp", "run", *words, *place, "--timeout", "100"]


def run_together(words, count=2, each=lambda index: {}):
    """`fedjax-dp run` in `count` processes; what each ended with."""
    port = free_port()
    started = [begin(run_words(words, port, count, index), **each(index)) for index in range(count)]
    return [ended(process) for process in started]


def run_alone(words, devices):
    code, out, told = ended(begin(["-m", "fedjax_dp", "run", *words], devices=devices))
    assert code == 0, told
    return out


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


BAD_WORDS = {
    "no port": ("host", 2, 0),
    "port": ("host:x", 2, 0),
    "large": ("h:99999", 2, 0),
    "none": ("h:1", 0, 0),
    "index": ("h:1", 2, 2),
    "below": ("h:1", 2, -1),
    "half": ("h:1", 2, None),
    "timeout": ("h:1", 2, 0, 0),
}


@pytest.mark.parametrize("words", BAD_WORDS.values(), ids=BAD_WORDS)
def test_words_that_name_no_process_are_refused(words):
    with pytest.raises(errors.ConfigurationError, match="must be"):
        distributed.group_of(*words)


def test_words_that_name_a_process():
    assert distributed.group_of("h:1", 3, 2, 9) == distributed.ProcessGroup("h:1", 3, 2, 9)
    assert distributed.group_of("auto", None, None) == distributed.ProcessGroup()


def test_a_port_in_use_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(errors.ConfigurationError, match=f"port of the coordinator must be free .* got {port}"):
            distributed._check_port(port)
    distributed._check_port(port)


FACTS = {"data": "1", "code": "2"}
OTHERS = {
    "alike": (FACTS, None),
    "data": (FACTS | {"data": "3"}, "data of process 1 must be that of process 0, 1, got 3"),
    "missing": ({"code": "2"}, "data of process 1 must be that of process 0, 1, got not given"),
    "refused": ({"refused": "no such folder"}, "process 1 has stopped: no such folder"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_processes_go_on_only_if_all_agree(name, monkeypatch):
    other, wanted = OTHERS[name]
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "_gather", lambda told: [told, other])
    if wanted is None:
        assert distributed.run_in_agreement(lambda: "made", lambda made: FACTS) == "made"
        return
    with pytest.raises(errors.ConfigurationError) as found:
        distributed.run_in_agreement(lambda: "made", lambda made: FACTS)
    assert wanted in str(found.value)


def test_a_refusal_of_this_process_is_told_to_the_others(monkeypatch):
    told = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "_gather", lambda facts: told.append(facts) or [FACTS, facts])

    def prepare():
        raise errors.ConfigurationError("mine")

    with pytest.raises(errors.ConfigurationError, match="mine"):
        distributed.run_in_agreement(prepare, lambda made: FACTS)
    assert told == [{"refused": "mine"}]


def test_the_checksum_of_the_code_tells_changes(tmp_path, monkeypatch):
    assert distributed.code_checksum() == distributed.code_checksum()
    copy = tmp_path / "fedjax_dp"
    shutil.copytree(
        pathlib.Path(distributed.__file__).parent.parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    before = distributed.code_checksum()
    monkeypatch.setattr(distributed, "__file__", str(copy / "execution" / "distributed.py"))
    assert distributed.code_checksum() == before
    (copy / "errors.py").write_text((copy / "errors.py").read_text() + "\n")
    assert distributed.code_checksum() != before


@pytest.mark.parametrize(
    "error", [ValueError, RuntimeError, KeyError, OSError, type("ConfigException", (Exception,), {})]
)
def test_a_cluster_that_jax_cannot_make_out_is_refused_whatever_it_raises(error, monkeypatch):
    def fails(*words, **options):
        raise error("no service account\nat all")

    monkeypatch.setattr(jax.distributed, "initialize", fails)
    refused = f"auto where JAX finds no cluster; {error.__name__}: .*no service account"
    with (
        pytest.raises(errors.ConfigurationError, match=refused) as found,
        distributed.join_processes(distributed.group_of("auto", None, None)),
    ):
        pass
    assert "\n" not in str(found.value)
    own = distributed.ProcessGroup("localhost:1", 2, 1, 5)
    with pytest.raises(error), distributed.join_processes(own):  # a defect, where all was given
        pass


def test_devices_of_processes_are_taken_alike(monkeypatch):
    class Device:
        platform = "cpu"

        def __init__(self, index):
            self.process_index = index

    found = [Device(index) for index in (0, 0, 0, 1, 1)]
    monkeypatch.setattr(jax, "devices", lambda: found)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("fedjax_dp.execution.mesh.Mesh", lambda devices, names: list(devices))
    assert fdp.execution.some_devices(2).mesh == [found[0], found[3]]
    assert fdp.execution.all_devices().mesh == found
    with pytest.raises(errors.ConfigurationError, match="a multiple of the 2 processes, got 3"):
        fdp.execution.some_devices(3)


CASES = {  # what passes between processes: sums, tables by client in parts, masked integers, cohorts that vary, looks
    "plain": [],
    "tables": ["--algorithm", "scaffold"],
    "tables on devices": ["--algorithm", "scaffold", "--records", "devices"],
    "masks": ["--algorithm", "cpfed", "--epsilon", "50"],
    "poisson": ["--algorithm", "dp_fedavg", "--cohort", "poisson", "--noise-multiplier", "1"],
    "looks": ["--algorithm", "rfedavg_plus"],
    "models in parts": ["--model-devices", "2"],
    "records": ["--records", "devices", "--train-metrics", "true"],
}


def run_by_slurm(words):
    """The same in two processes, whom the variables of Slurm tell who they are."""

    def environment(index):
        named = {"JOB_ID": "4711", "STEP_NODELIST": "localhost", "NTASKS": 2, "PROCID": index, "LOCALID": index}
        return {f"SLURM_{name}": str(value) for name, value in named.items()}

    words = ["-m", "fedjax_dp", "run", *words, "--coordinator", "auto"]
    return [ended(process) for process in [begin(words, environment=environment(index)) for index in range(2)]]


@pytest.mark.slow
@pytest.mark.parametrize("start", usual([run_together, run_by_slurm], [run_by_slurm]))
@pytest.mark.parametrize("name", usual(CASES, ("records",)))
def test_one_process_is_two(name, start, tmp_path):
    words = [*PLAIN, *CASES[name]]
    run_alone([*words, "--out", str(tmp_path / "one")], devices=2)
    (code, out, told), other = start([*words, "--out", str(tmp_path / "two")])
    assert code == 0, told
    assert other[:2] == (0, "")
    assert all("peer ranks" in line for line in other[2].splitlines()), "only the first process speaks"
    assert "in 2 processes" in told
    assert "test accuracy" in out
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
    assert (tmp_path / "two" / "run.png").is_file()


@pytest.mark.exhaustive
def test_a_fixed_order_gives_the_same_bits_on_any_processes_and_stdout_is_clean(tmp_path):
    words = [*PLAIN, "--deterministic", "4", "--json"]
    alone = json.loads(run_alone([*words, "--out", str(tmp_path / "1")], devices=1))
    for count, devices in ((2, 2), (3, 1)):
        out = tmp_path / f"{count} {devices}"
        first, *others = run_together([*words, "--out", str(out)], count, lambda index, n=devices: {"devices": n})
        assert json.loads(first[1])["history"] == alone["history"]
        assert all(other[:2] == (0, "") for other in others)


def started_long(out, port):
    """Two processes of a run that goes on, once its first checkpoint is whole."""
    every = ["--checkpoint-every", "50", "--evaluate-every", "50"]
    words = [*PLAIN, "--deterministic", "2", "--rounds", "1000000", *every]
    started = [begin(run_words([*words, "--out", str(out)], port, 2, index)) for index in range(2)]
    until = time.monotonic() + LIMIT_S
    while not (out / "checkpoints" / "50").is_dir() and time.monotonic() < until:
        time.sleep(0.2)
    assert all(process.poll() is None for process in started)
    return started


def shorten(out, rounds):
    """Make a run of `rounds` out of a longer one, which nobody else may: its configuration is held to its checksum."""
    about = json.loads((out / "run.json").read_text())
    about["config"]["rounds"] = rounds
    (out / "run.json").write_text(json.dumps(about | {"seal": folder.RUN_FOLDER.seal(about)}))


@pytest.mark.exhaustive  # CI: runs of two processes, above; on other devices, tests/tools/cli/test_cli.py
@pytest.mark.parametrize(("victim", "how"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_a_killed_process_ends_the_run_and_others_continue_it(victim, how, tmp_path):
    out = tmp_path / "run"
    started = started_long(out, free_port())
    started[victim].send_signal(how)
    code, printed, told = ended(started[1 - victim])
    assert code != 0, "JAX ends it, in its own words"
    assert printed == ""
    assert ended(started[victim])[0] == -how
    rounds = max(int(step.name) for step in (out / "checkpoints").iterdir() if step.name.isdecimal()) + 7
    shorten(out, rounds)
    shutil.copytree(out, tmp_path / "again")
    run_alone(["--resume", str(out)], devices=1)
    for code, _, told in run_together(["--resume", str(tmp_path / "again")], 3):
        assert code == 0, told
    assert metrics(out)[-1]["round"] == rounds
    assert metrics(out) == metrics(tmp_path / "again")


@pytest.mark.exhaustive  # CI: test_processes_go_on_only_if_all_agree, in one process
def test_processes_that_disagree_are_refused(tmp_path):
    def refused(words, each, wanted):
        for code, out, told in run_together([*PLAIN, "--out", str(tmp_path / "out"), *words], 2, each):
            assert (code, out) == (2, "")
            assert wanted in told.splitlines()[-1], told
            assert "Traceback" not in told
        assert not (tmp_path / "out").exists()

    code = tmp_path / "code"
    shutil.copytree(SOURCE / "fedjax_dp", code / "fedjax_dp")
    path = code / "fedjax_dp" / "errors.py"
    path.write_text(path.read_text() + "\n")
    other = {"environment": {"PYTHONPATH": str(code)}}
    refused([], lambda index: other if index else {}, "code of process 1 must be that of process 0")

    for index, kind in enumerate((np.float32, np.float16)):
        (tmp_path / f"{index}").mkdir()
        fdp.data.save_store(scattered_data(kind), tmp_path / f"{index}" / "store")
    words = ["--dataset", "store:store", "--cohort-size", "3", "--batch-size", "1"]
    refused(words, lambda index: {"folder": tmp_path / f"{index}"}, "data of process 1 must be that of process 0")


@pytest.fixture
def two_hosts():
    """Two network namespaces with an address each and a wire between them."""
    names = [f"fedjax{os.getpid()}{end}" for end in "ab"]
    etc = [pathlib.Path("/etc/netns") / name for name in names]
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", names[0]], capture_output=True).returncode:
        pytest.skip("network namespaces need ip and the right to make them")
    try:
        script = [["ip", "netns", "add", names[1]]]
        script.append(["ip", "link", "add", "v0", "netns", names[0], "type", "veth", "peer", "v1", "netns", names[1]])
        for index, name in enumerate(names):
            address = f"10.77.0.{index + 1}"
            script.append(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", f"v{index}"])
            script += [["ip", "-n", name, "link", "set", device, "up"] for device in ("lo", f"v{index}")]
            etc[index].mkdir(parents=True)
            (etc[index] / "hosts").write_text(f"{address} {socket.gethostname()}\n127.0.0.1 localhost\n")
        if any(subprocess.run(words, capture_output=True).returncode for words in script):
            pytest.skip("this machine makes no wires between network namespaces")
        yield [("ip", "netns", "exec", name) for name in names]
    finally:
        for name, folder in zip(names, etc, strict=True):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.exhaustive
def test_two_hosts_are_one(two_hosts, tmp_path):
    words = [*PLAIN, "--out", str(tmp_path / "two"), "--coordinator", "10.77.0.1:7700", "--processes", "2"]
    started = [
        begin(["-m", "fedjax_dp", "run", *words, "--process", str(index)], inside=host)
        for index, host in enumerate(two_hosts)
    ]
    for code, _, told in map(ended, started):
        assert code == 0, told
    run_alone([*PLAIN, "--out", str(tmp_path / "one")], devices=2)
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")
