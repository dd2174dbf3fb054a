"""`fedjax-dp catalogue`: every algorithm in a table, and the papers cited in full."""

import json

from fedjax_dp.cli.options import Detail, PrintOptions, parse
from fedjax_dp.cli.output import columns, page, show_lines
from fedjax_dp.papers import citations

DESCRIPTION = """usage: fedjax-dp catalogue [--json]

Every algorithm: source, privacy, state and bytes per round; what clients with models of their own pay in each view;
the papers cited in full. Markdown where stdout is
no terminal."""


def catalogue_command(arguments: list[str]) -> int:
    """Print the catalogue: a table on a terminal, Markdown elsewhere, or JSON."""
    options, _ = parse("catalogue", arguments, PrintOptions, DESCRIPTION)
    from fedjax_dp.experiments import catalogue_table, catalogue_views  # loads JAX

    table, views = catalogue_table.rows(), catalogue_views.rows()
    if options.json:
        cited = [paper.to_dict() for paper in citations.CITATIONS.values()]
        paid = [row._asdict() | {"paid": {view: one._asdict() for view, one in row.paid.items()}} for row in views]
        print(json.dumps({"catalogue": [row._asdict() for row in table], "views": paid, "citations": cited}))
        return 0
    console = page()
    if not console.is_terminal:
        print(f"{catalogue_table.markdown(table)}\n\n{catalogue_table.SHAPE}\n")
        print(f"{catalogue_views.markdown(views)}\n\n{catalogue_views.ABOUT}\n\n## Citations\n\n{citations.markdown()}")
        return 0
    cells = zip(*map(catalogue_table.cells, table), strict=True)
    columns(
        console,
        dict(zip(catalogue_table.HEADER, cells, strict=True)),
        left=catalogue_table.HEADER[:4],
        wrapped=["source"],
    )
    console.print(f" {catalogue_table.SHAPE}\n")
    cells = zip(*map(catalogue_views.cells, views), strict=True)
    columns(console, dict(zip(catalogue_views.HEADER, cells, strict=True)), left=catalogue_views.HEADER[:1])
    console.print(f" {catalogue_views.ABOUT}\n")
    show_lines([(name, str(paper)) for name, paper in citations.CITATIONS.items()], (), (), Detail.USUAL)
    return 0
