"""What follows from an event in a group of ranks: the actions that a supervisor carries out."""

from __future__ import annotations

from dataclasses import dataclass

from parallel.groups.epoch import Epoch


@dataclass(frozen=True)
class Start:
    rank: int


@dataclass(frozen=True)
class Kill:
    rank: int


@dataclass(frozen=True)
class AskToRegroup:
    """Let the members finish their step and wait for another epoch. leaders: the ranks to be told."""

    leaders: list[int]


@dataclass(frozen=True)
class Begin:
    epoch: Epoch


@dataclass(frozen=True)
class Fail:
    """The running requests are lost."""

    message: str


@dataclass(frozen=True)
class GiveUp:
    """No rank is left to serve, and none will come. is_final: the user has to mend something first."""

    message: str
    is_final: bool


@dataclass(frozen=True)
class Say:
    message: str


Action = Start | Kill | AskToRegroup | Begin | Fail | GiveUp | Say
