"""Pictures of the documentation, drawn from runs of the project's own code: `python -m docs.pictures` draws all."""
