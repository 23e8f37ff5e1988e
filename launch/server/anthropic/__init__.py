"""The bodies, replies, events and errors of Anthropic's Messages API, which are turned to and from those of chats."""
