"""What Sphinx has to know; `build_docs.py` gathers the pages and runs it."""

import topic_probe

project, author = "topic_probe", "the topic_probe contributors"
release = version = topic_probe.__version__
copyright = author

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"topic_probe {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
