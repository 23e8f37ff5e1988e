"""An interactive chat: its messages, settings and commands, and the models that answer, in ranks or behind a URL.

Knows no Ray, and not how ranks are started: it is given a backend.
"""
