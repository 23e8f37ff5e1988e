"""What a model's answer is made of: content, reasoning and tool calls, found in its text as it comes.

Pure functions and parsers over text. Knows nothing of HTTP, of requests and of the API in which the answer is written.
"""
