"""The documentation: its pages, its pictures and the programs that draw and build them."""
