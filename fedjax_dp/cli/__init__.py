"""The command line: parse, call, print. Accounting commands never import JAX."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from fedjax_dp import __version__, errors
from fedjax_dp.cli.watch import watched

USAGE = """usage: fedjax-dp run [CONFIG.toml] [OPTIONS] [--json]
       fedjax-dp run --resume DIR [--json]
       fedjax-dp run ... --coordinator HOST:PORT --processes P --process I
       fedjax-dp export RUN FILE.safetensors|FILE.npz
       fedjax-dp sweep SWEEP.toml [--out DIR] [--plan] [--json]
       fedjax-dp best SWEEP [--metric M] [--epsilon-at-most E] [--json]
       fedjax-dp plot SWEEP [OPTIONS]
       fedjax-dp reproduce [NAME] [--scale smoke|small|full] [--seeds N] [--out DIR] [--json]
       fedjax-dp audit [CONFIG.toml] [OPTIONS] [--trials N] [--plot FILE] [--json]
       fedjax-dp bench [CONFIG.toml] [OPTIONS] [--turns N] [--plot FILE] [--json]
       fedjax-dp account --noise-multiplier Z --steps T --delta D --adjacency A [OPTIONS] [--json]
       fedjax-dp calibrate --epsilon E --steps T --delta D --adjacency A [OPTIONS] [--json]
       fedjax-dp claims [--paper NAME] [--json]
       fedjax-dp catalogue [--json]
       fedjax-dp data [DATASET] [OPTIONS] [--plot FILE] [--json]
       fedjax-dp data convert DATASET [OPTIONS] --out DIR

commands:
  run        train a federated algorithm and say what privacy it gives; with no argument a private run on digits
  export     the parameters of a run as a file that other programs read
  sweep      seeds x hyperparameters x budgets as few compiled programs; the same command goes on after a stop
  best       the winner of a sweep as a configuration for run
  plot       pictures of a sweep
  reproduce  the tables and figures of the papers: published, literal, correct, and what each proves
  audit      attack a run thousands of times and prove a lower bound; exit code 1 if its epsilon is violated
  bench      where the time of a round goes, and its floor
  account    the epsilon of noisy steps by every accountant, side by side
  calibrate  the noise multiplier that each accountant asks for
  claims     what the papers' theorems say on the papers' own settings, and what can be proved
  catalogue  every algorithm: source, whom it hides from whom, what is kept, bytes per round
  data       how a partition spreads a data set over clients: sizes, labels, heterogeneity, a picture; or writes a store

fedjax-dp COMMAND --help, or fedjax-dp help COMMAND, shows every option with its default; --version tells the version.

exit codes: 0 done; 1 an audit found a violation, training diverged or a secure sum overflowed; 2 bad input, in one
line; 3 a defect of this program; 130 interrupted
"""

COMMANDS = {
    "run": "run",
    "export": "export",
    "sweep": "sweep",
    "best": "best",
    "plot": "plot",
    "reproduce": "reproduce",
    "audit": "audit",
    "bench": "bench",
    "account": "account",
    "calibrate": "account",
    "claims": "account",
    "catalogue": "catalogue",
    "data": "data",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 an audit found a violation, training diverged or a secure sum overflowed, 2 bad input, 3 a
    defect of this program, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments == ["--version"]:
        print(f"fedjax-dp {__version__}")
        return 0
    if arguments[0] == "help":  # help, help COMMAND
        return main([*arguments[1:2], "--help", *arguments[2:]])
    command, rest = arguments[0], arguments[1:]
    if command == "run" and any(word.partition("=")[0] == "--coordinator" for word in rest):
        return watched(lambda: _done(command, rest))
    return _done(command, rest)


def _done(command: str, rest: list[str]) -> int:
    """The exit code of a command."""
    try:
        errors.require_choice("command", command, COMMANDS)
        module = importlib.import_module(f"fedjax_dp.cli.{COMMANDS[command]}")  # only what the command needs is loaded
        carry_out: Callable[[list[str]], int] = getattr(module, f"{command}_command")
        return carry_out(rest)
    except errors.ConfigurationError as error:
        print(f"fedjax-dp: {error}", file=sys.stderr)
        return 2
    except (errors.DivergedError, errors.RingOverflowError, errors.LostError) as error:
        print(f"fedjax-dp: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # whoever reads exit codes must not take a defect for a finding
        traceback.print_exc()
        return 3
    except KeyboardInterrupt:
        resume = {
            "run": "; fedjax-dp run --resume DIR continues from the last checkpoint",
            "sweep": "; the same command goes on where it stopped",
            "reproduce": "; the same command goes on where it stopped",
        }.get(command, "")
        print(f"fedjax-dp: interrupted{resume}", file=sys.stderr)
        return 130
