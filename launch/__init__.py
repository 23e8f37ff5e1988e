"""Programs: the only place that knows Hydra, HTTP and terminals."""
