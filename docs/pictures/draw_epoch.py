"""A group of three ranks that loses one and gets it back, as the supervisor's own state machine decides it."""

from __future__ import annotations

from dataclasses import dataclass, field

from docs.pictures import ink
from docs.pictures.ink import BOLD, MIDDLE, text
from launch.supervisor.membership import Action, Begin, Membership, SupervisorSettings

WIDTH, HEIGHT = 1020, 380
LEFT, PER_SECOND, END_S = 130, 82, 10.6
LANE_Y, LANE_H = 92, 56
KILLED, KILLED_AT, READY_AT = 1, 4.0, 8.0
COLOURS = {"down": "lost", "loading": "line", "serving": "rank0"}
TITLE = "Three ranks serve; one is killed, the others go on at once, and it joins again when it has loaded the model"


@dataclass
class Story:
    """epochs: number, members and beginning of each. lanes: for each rank, its states and when each begins."""

    epochs: list[tuple[int, list[int], float]] = field(default_factory=list)
    lanes: list[list[tuple[str, float]]] = field(default_factory=lambda: [[], [], []])


def tell() -> Story:
    """Tells the membership what happens to its ranks, and notes what it decides."""
    group, story = Membership(3, SupervisorSettings()), Story()
    survivors = [rank for rank in range(3) if rank != KILLED]

    def note(actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Begin):
                story.epochs.append((action.epoch.number, list(action.epoch.members), now))
                for rank in action.epoch.members:
                    note(group.joined(rank, group.number, now), now)
        for rank, lane in enumerate(story.lanes):
            state = group.slots[rank].state.name
            state = state if state in ("down", "serving") else "loading"
            if not lane or lane[-1][0] != state:
                lane.append((state, now))

    note(group.start(0.0), 0.0)
    for rank, ready in enumerate((0.8, 1.1, 1.0)):
        group.came(rank, 0.3)
        note(group.is_ready(rank, ready), ready)
    for tenth in range(11, 106):
        now = tenth / 10
        for rank in range(3):
            group.heard(rank, now)
        if now == KILLED_AT:
            note(group.ended(KILLED, "it was ended by SIGKILL", now), now)
        if now == READY_AT:
            note(group.is_ready(KILLED, now), now)
            for rank in survivors:
                note(group.left(rank, group.number, now + 0.05), now + 0.05)
        note(group.tick(now), now)
    return story


def draw() -> str:
    story = tell()
    shapes = [text(20, 34, "Seconds", 12, "faint")]
    shapes += [text(at(second), 34, str(second), 12, "faint", MIDDLE) for second in range(11)]
    for rank, lane in enumerate(story.lanes):
        shapes += _lane(rank, lane)
    shapes += _stream(story)
    for number, members, begin in story.epochs:
        x = at(begin)
        shapes.append(ink.path(f"M{x:g} 62 V{HEIGHT - 22}", "accept", 1.5, 'stroke-dasharray="5 4"'))
        who = ", ".join(str(rank) for rank in members)
        shapes.append(text(x + 6, 66, f"epoch {number}: ranks {who}", 13, "accept", BOLD))
    return ink.svg(WIDTH, HEIGHT, TITLE, shapes)


def at(second: float) -> float:
    return LEFT + PER_SECOND * second


def _lane(rank: int, lane: list[tuple[str, float]]) -> list[str]:
    y = LANE_Y + LANE_H * rank + LANE_H / 2
    shapes = [text(20, y + 5, f"Rank {rank}", 15, "ink", BOLD)]
    for (state, begin), (_, end) in zip(lane, [*lane[1:], ("", END_S)], strict=True):
        x0, x1 = at(begin), at(end)
        shapes.append(ink.box((x0 + x1) / 2, y, x1 - x0, 34, COLOURS[state]))
        word = {"down": "killed", "loading": "starts and loads the model", "serving": "serves"}[state]
        if x1 - x0 > 9 * len(word):
            shapes.append(text((x0 + x1) / 2, y + 5, word, 13, "ink", MIDDLE))
        elif state == "down":
            shapes.append(text((x0 + x1) / 2, y + 30, "killed", 12, "faint", MIDDLE))
    return shapes


def _stream(story: Story) -> list[str]:
    """The tokens that a client gets: they stop for a moment when a rank is killed."""
    y = LANE_Y + LANE_H * 3 + 38
    shapes = [text(20, y + 1, "Client's", 15, "ink", BOLD), text(20, y + 19, "stream", 15, "ink", BOLD)]
    now = story.epochs[0][2] + 0.2
    while now < END_S - 0.1:
        if not KILLED_AT <= now < KILLED_AT + 0.15:
            shapes.append(ink.box(at(now), y, 8, 22, "emitted", "accept"))
        now += 0.16
    x = at(KILLED_AT)
    return [
        *shapes,
        text(x + 8, y + 34, "a short pause; no token is lost or sent twice", 13, "faint"),
    ]
