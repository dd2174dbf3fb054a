"""`fedjax-dp catalogue`: every algorithm in a table, and the papers cited in full."""

from fedjax_dp.tools.cli.options import PrintOptions, parse
from fedjax_dp.tools.cli.output import columns, page, print_json, show_lines
from fedjax_dp.tools.papers import citations

DESCRIPTION = """usage: fedjax-dp catalogue [--json]

List every algorithm: source, privacy, state and bytes per round; what personal models cost in each view; the papers in
full. The output is Markdown unless stdout is a terminal."""
CatalogueOptions = PrintOptions


def catalogue_command(arguments: list[str]) -> int:
    """Print the catalogue: a table on a terminal, Markdown elsewhere, or JSON."""
    options = parse("catalogue", arguments, CatalogueOptions, DESCRIPTION)
    from fedjax_dp.tools.cli import catalogue_tables as tables  # loads JAX

    entries, views = tables.entry_rows(), tables.views_rows()
    if options.json:
        cited = [paper.to_dict() for paper in citations.CITATIONS.values()]
        paid = [row._asdict() | {"paid": {view: one._asdict() for view, one in row.paid.items()}} for row in views]
        return print_json({"catalogue": [row._asdict() for row in entries], "views": paid, "citations": cited})
    console = page()
    if not console.is_terminal:
        print(f"{tables.markdown(tables.HEADER, entries)}\n\n{tables.SHAPE}\n")
        print(f"{tables.markdown(tables.VIEWS_HEADER, views)}\n\n{tables.ABOUT_VIEWS}\n")
        print(f"## Citations\n\n{citations.markdown()}")
        return 0
    cells = zip(*(row.cells for row in entries), strict=True)
    columns(console, dict(zip(tables.HEADER, cells, strict=True)), left=tables.HEADER[:4], wrapped=["source"])
    console.print(f" {tables.SHAPE}\n")
    cells = zip(*(row.cells for row in views), strict=True)
    columns(console, dict(zip(tables.VIEWS_HEADER, cells, strict=True)), left=tables.VIEWS_HEADER[:1])
    console.print(f" {tables.ABOUT_VIEWS}\n")
    show_lines([(name, str(paper)) for name, paper in citations.CITATIONS.items()])
    return 0
