"""decode=auto: one tree of drafts from all sources, and a second model's drafts in it if there is one."""
