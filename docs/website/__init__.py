"""Builds the documentation site: `make docs`, or `python -m docs.website`.

Pages are the Markdown files of docs/ and a few others of the checkout, with parts that are generated from the sources:
settings, routes, results. Knows the project's files, and leaves HTML to Zensical.
"""
