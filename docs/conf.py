"""Sphinx's settings for the site; `make docs` builds it without a network, and every warning is an error."""

from __future__ import annotations

import meshwright

project = "Meshwright"
author = "the Meshwright authors"
version = release = meshwright.__version__
extensions = ("myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon")
nb_execution_mode = "force"  # what a notebook shows is what this version answers
nb_execution_timeout = 300  # seconds of a cell
nb_execution_raise_on_error = True
nb_kernel_rgx_aliases = {".*": "python3"}
myst_heading_anchors = 4  # headings are link targets, as on public forges
default_role = "literal"  # `name` in docstrings
autodoc_typehints = "none"  # docstrings tell types, in words
autodoc_member_order = "bysource"
napoleon_google_docstring = False
maximum_signature_line_length = 100
add_module_names = False
html_theme = "furo"
html_title = f"Meshwright {version}"
html_copy_source = False
html_static_path = ("static",)
html_css_files = ("site.css",)
