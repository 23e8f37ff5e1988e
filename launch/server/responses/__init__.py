"""The bodies, replies and events of OpenAI's Responses API, which are turned to and from those of chat completions."""
