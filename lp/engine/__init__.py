"""The engine: what drives the parts of lp. `builder` assembles one, `input` makes requests of prompts, `engine` has the
loop."""
