"""The load of a soak: its questions, and how answers are judged."""

from __future__ import annotations

import asyncio

import httpx

from benchmarks.faults.soak_load import SoakLoad, ask, questions


def test_the_load_has_short_and_long_greedy_and_sampled_questions() -> None:
    asked = questions(["def f(", "class A:"])
    assert len({question.name for question in asked}) == len(asked) == 8
    assert {(q.body["max_tokens"], q.body["temperature"]) for q in asked} == {(24, 0), (24, 0.8), (256, 0), (256, 0.8)}


def test_an_answer_that_differs_or_does_not_come_is_wrong() -> None:
    """The server answers twice with the right text, then with another one, then with an error."""
    texts = iter(["right", "right", "rigid"])

    def answer(request: httpx.Request) -> httpx.Response:
        text = next(texts, None)
        if text is None:
            return httpx.Response(500, json={"error": {"message": "a rank is lost"}})
        choice = {"text": text, "logprobs": None, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": 5}})

    async def judged() -> list[str | None]:
        load = SoakLoad("http://server", questions(["def f("]), 1, 0)
        name = load.questions[0].name
        async with httpx.AsyncClient(base_url=load.url, transport=httpx.MockTransport(answer)) as client:
            load.right[name] = await ask(client, {}, streams=False)
            return [load.judge(name, False, await ask(client, {}, streams=False)).wrong for _ in range(3)]

    assert asyncio.run(judged()) == [
        None, "another answer: 'rigid', which leaves 'right' at character 3", "a rank is lost"
    ]  # fmt: skip
