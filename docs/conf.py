"""How the site is built: `sphinx-build -W -b html docs docs/_build`; a warning is an error.

Catalogue, results, other systems, gallery and API reference are written anew by each build, from the code and the
measured files.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import fedjax_dp  # noqa: E402

project = "fedjax_dp"
author = "The fedjax_dp developers"
copyright = author
release = version = fedjax_dp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "mathml",
    "written",
]
exclude_patterns = ["_build", "_ext", "*.in.md"]
nitpicky = False
default_role = "literal"

# Notebooks show what they printed at full scale; the tests run them at tiny scale.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist", "substitution"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "sphinx_book_theme"
html_title = f"fedjax_dp {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
# A page of source code leads back to what it documents; the tree of all pages beside it took half of a build.
html_sidebars = {"_modules/**": ["navbar-logo.html", "search-button-field.html"]}
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "home_page_in_toc": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # not of what was printed
smartquotes = False
