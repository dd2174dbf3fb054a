"""`fedjax-dp catalogue`: every algorithm in a table."""

import json

from fedjax_dp import errors
from fedjax_dp.cli.options import take_flag


def catalogue_command(arguments: list[str]) -> int:
    """Print the catalogue as Markdown, or as JSON."""
    from fedjax_dp.experiments import catalogue_table  # loads JAX

    as_json, arguments = take_flag(arguments, "--json")
    if arguments and arguments[0] not in ("-h", "--help"):
        raise errors.refuse("argument", repr(arguments[0]), "--json or nothing for fedjax-dp catalogue")
    if arguments:
        print("usage: fedjax-dp catalogue [--json]\n\nEvery algorithm: source, privacy, state and bytes per round.")
        return 0
    table = catalogue_table.rows()
    if as_json:
        print(json.dumps({"catalogue": [row._asdict() for row in table]}))
    else:
        print(catalogue_table.markdown(table))
    return 0
