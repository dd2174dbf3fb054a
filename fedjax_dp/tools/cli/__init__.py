"""The command line: parse, call, print. Accounting commands never import JAX."""

import errno
import functools
import os
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence

from fedjax_dp import __version__, errors, folders, own_code
from fedjax_dp.tools.cli.commands import COMMANDS, INSTALL, command_of, install_completion

USAGE = """usage: fedjax-dp run [CONFIG.toml] [OPTIONS]
       fedjax-dp COMMAND [OPTIONS]

commands:
{commands}

{more}
"""
MORE = """fedjax-dp COMMAND --help shows examples and the usual options of a command, --help-all every option. --version
prints the version; --install-completion lets your shell complete commands and options.

--json prints one JSON object on stdout and nothing else (all commands but new, export, plot and report); --quiet prints
the result alone; --verbose prints details (run, audit).

exit codes: 0 done; 1 an audit found a violation, check a wrong claim or no privacy, training diverged or a secure sum
overflowed; 2 wrong input, or an error in your own code, in one line; 3 the machine failed (disk or memory full), in one
line, or a bug of this program, with its traceback; 130 interrupted"""
WIDEST = 120  # letters of a line of help
UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)  # as paths that a user gives may be
INTERRUPTED = 130
FULL = "RESOURCE_EXHAUSTED"  # as XLA reports memory


def usage() -> str:
    """The commands, as wide as the terminal."""
    columns = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    fill = functools.partial(textwrap.fill, width=columns, break_on_hyphens=False)
    commands = (
        fill(text, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14) for name, text in COMMANDS.items()
    )
    return USAGE.format(commands="\n".join(commands), more="\n\n".join(map(fill, MORE.split("\n\n"))))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 an audit found a violation, training diverged or a secure sum overflowed, 2 bad input
    or code of the user's that fails, 3 the machine failed or a defect of this program, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(usage(), end="", file=sys.stderr)
        return 2
    if arguments[0] == "help":  # help, help COMMAND
        return main([*arguments[1:2], "--help", *arguments[2:]])
    code = _done(arguments[0], arguments[1:])
    if code == INTERRUPTED and argv is None:  # the process ends: at a second Ctrl-C at once, and without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _run(command: str, rest: list[str]) -> int:
    if command in ("-h", "--help"):
        print(usage(), end="")
        return 0
    if command == "--version" and not rest:
        print(f"fedjax-dp {__version__}")
        return 0
    if command == INSTALL:
        return install_completion(rest)
    errors.require_choice("command", command, COMMANDS)
    return command_of(command)(rest)


def _done(command: str, rest: list[str]) -> int:
    """The exit code of a command."""
    try:
        code = _run(command, rest)
        sys.stdout.flush()  # where its disk is full it fails here, and not after everything
        return code
    except errors.ConfigurationError as error:
        return _end(error, 2)
    except (errors.DivergedError, errors.RingOverflowError, errors.LostError) as error:
        return _end(error, 1)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno in UNUSABLE and error.filename is not None:
            path, why = str(error.filename), folders.reason(error)
            return _end(errors.refuse("path", folders.printable(path), "one that can be used", why), 2)
        code = _failed(error)
        if error.errno in folders.MACHINE and error.filename is None:  # the output itself, which Python flushes again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return code
    except Exception as error:  # whoever reads exit codes must not take a defect for a finding
        return _failed(error)
    except KeyboardInterrupt as error:
        again = "; the same command goes on where it stopped"
        resume = {"sweep": again, "reproduce": again}.get(command, "")
        for folder in getattr(error, "__notes__", ()):  # of a run that has begun
            resume = f"; fedjax-dp run --resume {folders.quote_path(folder)} goes on"
        return _end(f"interrupted{resume}", INTERRUPTED)


def _end(line: object, code: int) -> int:
    """Print one line about the end of a command; its exit code."""
    print(f"fedjax-dp: {line}", file=sys.stderr)
    return code


def _failed(error: Exception) -> int:
    """The exit code of what no option is wrong in: a line about the machine or the user's own code, or the traceback
    of a defect."""
    if isinstance(error, errors.StorageError):
        return _end(error, 3)
    if isinstance(error, OSError) and error.errno in folders.MACHINE:
        what, reason = str(error.filename or "the output"), folders.reason(error)
        return _end(errors.StorageError(what, reason, "make room, or write elsewhere"), 3)
    if isinstance(error, MemoryError) or FULL in str(error):
        why = (str(error).splitlines() or ["none is left"])[0][:160]
        return _end(f"memory is full: {why}; take a smaller cohort or model, or --chunk-size 1", 3)
    if own_code.own_frames(error):
        return _end(errors.refuse("code", own_code.describe_error(error), "such that it runs without an error"), 2)
    traceback.print_exc()
    return 3
