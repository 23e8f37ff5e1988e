"""What several devices would cost and do, from a model's configuration and from recorded steps."""
