"""Where drafts come from, what each is worth, and how many of them a step should carry."""
