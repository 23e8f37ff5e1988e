"""Answers the rows of many sequences at once, whatever their settings: penalties first, then choosers.

How many kernels and copies that takes depends on which kinds of settings there are, not on the number of sequences, and
a row's answer does not depend on the other rows. Where the settings truncate the distribution, a `Shortlist` comes
first; `FullVocabulary` decides the rows that remain. Knows nothing of trees, windows or ranks.

    L rows of all sequences, R rows of one, V vocabulary, K best tokens, T likeliest tokens of a row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lp.grammar.state import Masks, apply_masks
from lp.platform.hardware import Download, upload
from lp.sampling.choosers import can_fuse
from lp.sampling.contrast import Contrast, as_wide
from lp.sampling.contrast import apply as apply_contrast
from lp.sampling.penalties import Touched, change
from lp.sampling.rows import LAYOUT, Chooser, Rows
from lp.sampling.top_k import top_tokens
from lp.tree import Ahead, Answers

# Launches a captured kind of choosing for all rows of a step; returns what it has chosen, as FusedChooser does.
Replay = Callable[[str], Tensor]
# The most likeliest tokens that a request may ask for; see Sampling.check. As many are always found, so that which of
# several equally likely ones come first does not depend on how many are asked for. A beam search may need more.
MOST_LIKELIEST = 20


class Asked(NamedTuple):
    """The rows of one sequence that are to be answered, and how; see `Sampler.ask`.

    choosers: each gets the rows that the one before has left undecided. choices, dropped, positions: of the rows, as
    `Rows` has them; unused positions are 0. touch: says what penalties and biases do; None if there are none.
    num_candidates: K, the number of best tokens to return for each row; 0 is the target alone. num_likeliest: T; None
    if no log-probabilities are asked for. scored: int64 [R], tokens whose log-probabilities are asked for; None for
    those of the targets. mask: says what a grammar allows; None if there is
    none. ahead: what the model's heads are asked for, which is not answered here. num_hidden: numbers of the hidden
    states that are reported, which are not answered here either. contrast: what the scores are made
    of; None if they are the logits. second: a second model's logits for the rows, float32 [R, V], if it needs them;
    without a contrast, log-probabilities are made of these.
    """

    choosers: tuple[Chooser, ...]
    choices: np.ndarray
    dropped: np.ndarray
    positions: np.ndarray
    touch: Callable[[], Touched] | None
    num_candidates: int
    num_likeliest: int | None
    scored: np.ndarray | None = None
    mask: Callable[[], Masks] | None = None
    ahead: Ahead | None = None
    contrast: Contrast | None = None
    second: Tensor | None = None
    num_hidden: int = 0

    @property
    def changes(self) -> bool:
        """Whether scores are changed before tokens are chosen."""
        return self.touch is not None or self.mask is not None or self.contrast is not None

    @property
    def is_plain(self) -> bool:
        """Whether tokens are chosen by the logits as they are, and nothing else is asked."""
        return not self.changes and self.num_likeliest is None

    @property
    def is_judged(self) -> bool:
        return self.second is not None and self.contrast is None

    @property
    def may_wait(self) -> bool:
        """Whether scores may be needed once the host has seen the first chooser's answers."""
        return len(self.choosers) > 1

    @property
    def graph_kind(self) -> str | None:
        """The kind of a graph's choosing that may stand for the first chooser; None if no graph may."""
        return self.choosers[0].graph_kind


def side_by_side(asked: Sequence[Asked]) -> list[int]:
    """The numbers of all that is asked, those that the same choosers answer next to each other."""
    return [number for group in _groups(asked) for number in group]


def _groups(asked: Sequence[Asked]) -> list[list[int]]:
    groups: dict[tuple[Chooser, ...], list[int]] = {}
    for number, one in enumerate(asked):
        groups.setdefault(one.choosers, []).append(number)
    return list(groups.values())


def launch_all(
    asked: Sequence[Asked],
    logits_LV: Tensor,
    rows: Sequence[slice] | None = None,
    replay: Replay | None = None,
    is_lasting: bool = True,
) -> Callable[[], list[Answers]]:
    """Gives the device its work for the answers to all rows. Returns what waits for them.

    logits_LV: float32 and contiguous, and may be written over. rows: which of them belong to each sequence; None if one
    sequence's lie behind the other's. replay: what a graph does in the place of the choosers of FusedChooser; None if
    there is no graph. is_lasting: whether the logits are there until the answers are; else those that are needed are
    copied.
    """
    if not asked:
        return list
    if (found := _find_all(asked, logits_LV, rows)) is not None:
        return lambda: found
    return _launch_all(asked, logits_LV, _behind(asked) if rows is None else rows, replay, is_lasting)


def _find_all(asked: Sequence[Asked], logits_LV: Tensor, rows: Sequence[slice] | None) -> list[Answers] | None:
    """The answers to all that is asked, at once, where the library can find them: on a CPU, where the same chooser
    gives all tokens and nothing else is asked. None elsewhere.

    Tensors for a few numbers took half of the time between two forwards (docs/log/kernels.md).
    """
    if logits_LV.device.type != "cpu":
        return None
    choosers = asked[0].choosers
    for one in asked:
        if one.choosers != choosers or not one.is_plain:
            return None
    scores_RV = logits_LV if rows is None else _Kept(logits_LV, 0).rows(rows)
    tokens = choosers[0].find(_rows(asked, scores_RV))
    if tokens is None:
        return None
    if len(asked) == 1:
        return [_answer(asked[0], tokens)]
    return [_answer(one, tokens[own]) for one, own in zip(asked, _behind(asked), strict=True)]


@torch.inference_mode()
def _launch_all(
    asked: Sequence[Asked],
    logits_LV: Tensor,
    rows: Sequence[slice],
    replay: Replay | None,
    is_lasting: bool,
) -> Callable[[], list[Answers]]:
    touched = [(own.start, one.touch()) for own, one in zip(rows, asked, strict=True) if one.touch]
    reported = [number for number, one in enumerate(asked) if one.num_likeliest is not None]
    are_changed = any(asked[number].changes or (asked[number].may_wait and not is_lasting) for number in reported)
    logits = _kept(logits_LV, [rows[number] for number in reported], are_changed)
    if any(one.contrast for one in asked):
        pairs = zip(rows, asked, strict=True)
        apply_contrast(logits_LV, [(own, one.contrast, one.second) for own, one in pairs if one.contrast])
    if touched:
        change(logits_LV, touched, can_fuse(logits_LV.device))
    masked = {number: one.mask() for number, one in enumerate(asked) if one.mask}
    if masked:
        apply_masks(logits_LV, [(rows[number].start, found) for number, found in masked.items()])
    groups = _groups(asked)
    late = [rows[number] for group in groups for number in group if asked[number].may_wait]
    kept = _kept(logits_LV, late, not is_lasting)
    replay = cache(replay) if replay else None
    launched = [_launch_group(asked, numbers, rows, logits_LV, kept, replay) for numbers in groups]
    report = _launch_report(asked, reported, rows, logits, launched)
    parts = [group.packed for group in launched] + ([report.packed] if report else [])
    download = Download(parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts]))
    return lambda: _answers(asked, launched, report, download, masked)


def _behind(asked: Sequence[Asked]) -> list[slice]:
    ends = accumulate(len(one.choices) for one in asked)
    return [slice(end - len(one.choices), end) for end, one in zip(ends, asked, strict=True)]


class _Kept(NamedTuple):
    """Rows of a step. first: the number of the first of them."""

    values: Tensor
    first: int

    def rows(self, wanted: Sequence[slice]) -> Tensor:
        """These rows, one slice's behind the other's; no copy if they lie so."""
        runs: list[slice] = []
        for own in wanted:
            start = runs.pop().start if runs and runs[-1].stop == own.start else own.start
            runs.append(slice(start, own.stop))
        parts = [self.values[run.start - self.first : run.stop - self.first] for run in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _kept(values_LV: Tensor, rows: Sequence[slice], is_copied: bool) -> _Kept:
    """Holds these rows and those between them, as one copy if they are to be copied."""
    if not rows or not is_copied:
        return _Kept(values_LV, 0)
    first, last = min(own.start for own in rows), max(own.stop for own in rows)
    return _Kept(values_LV[first:last].clone(), first)


@dataclass
class _Group:
    """Sequences that the same choosers answer.

    numbers: of the sequences. packed: what the first chooser has answered, on the device. rows: where each sequence's
    are in `packed`; those between them mean nothing. rest: the rows with their scores, for the other choosers.
    """

    numbers: list[int]
    packed: Tensor
    rows: list[slice]
    rest: Callable[[], Rows]


def _launch_group(
    asked: Sequence[Asked],
    numbers: list[int],
    rows: Sequence[slice],
    scores_LV: Tensor,
    kept: _Kept,
    replay: Replay | None,
) -> _Group:
    chosen, own = [asked[number] for number in numbers], [rows[number] for number in numbers]
    first = chosen[0].choosers[0]

    def rest() -> Rows:
        return _rows(chosen, kept.rows(own))

    if replay and (kind := first.graph_kind):
        begin, end = min(one.start for one in own), max(one.stop for one in own)
        places = [slice(one.start - begin, one.stop - begin) for one in own]
        return _Group(numbers, replay(kind)[begin:end], places, rest)
    return _Group(numbers, first(_rows(chosen, _Kept(scores_LV, 0).rows(own))), _behind(chosen), rest)


def _rows(chosen: Sequence[Asked], scores_RV: Tensor) -> Rows:
    """The rows of these sequences, whose scores lie one behind the other."""
    if len(chosen) == 1:
        (one,) = chosen
        return Rows(scores_RV, one.choices, one.dropped, one.positions)
    parts = zip(*((one.choices, one.dropped, one.positions) for one in chosen), strict=True)
    return Rows(scores_RV, *(np.concatenate(part) for part in parts))


def _launch_report(
    asked: Sequence[Asked], reported: list[int], rows: Sequence[slice], logits: _Kept, groups: list[_Group]
) -> LogProbabilities | None:
    """Gives the device its work for the log-probabilities of what the groups' first choosers have chosen."""
    if not reported:
        return None
    targets: dict[int, Tensor] = {}
    for group in groups:
        targets |= {number: group.packed[own, 1:2] for number, own in zip(group.numbers, group.rows, strict=True)}
    for number in reported:
        if (scored := asked[number].scored) is not None:
            targets[number] = upload(scored, logits.values.device)[:, None].to(targets[number].dtype)
    num_likeliest = [asked[number].num_likeliest or 0 for number in reported]
    own = logits.rows([rows[number] for number in reported])
    if any(asked[number].is_judged for number in reported):
        own = torch.cat([_judge(asked[number], logits.rows([rows[number]])) for number in reported])
    return LogProbabilities.launch(
        reported, [len(asked[number].choices) for number in reported], num_likeliest, own,
        torch.cat([targets[number] for number in reported]),
    )  # fmt: skip


def _judge(one: Asked, logits_RV: Tensor) -> Tensor:
    """[R, V] what log-probabilities of a sequence's rows are made of. logits_RV: the first model's."""
    return as_wide(one.second, logits_RV.shape[1]) if one.is_judged and one.second is not None else logits_RV


@torch.inference_mode()
def _answers(
    asked: Sequence[Asked],
    groups: list[_Group],
    report: LogProbabilities | None,
    download: Download,
    masked: dict[int, Masks],
) -> list[Answers]:
    """The answers to all that is asked, in its order, once the rows that were left undecided are decided."""
    downloaded = download.wait().reshape(-1)
    found = [Answers.none() for _ in asked]
    late = [np.empty(0, bool)] * len(asked)
    end = 0
    for group in groups:
        begin, end = end, end + group.packed.numel()
        tokens, is_late = _choose(group, asked[group.numbers[0]], downloaded[begin:end].reshape(group.packed.shape))
        for number, own in zip(group.numbers, group.rows, strict=True):
            found[number] = _answer(asked[number], tokens[own])
            late[number] = is_late[own]
    for number, allowed in masked.items():
        allowed.fix(found[number])
    if report:
        report.add_to(found, late, downloaded[end:])
    return found


def _choose(group: _Group, one: Asked, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The group's tokens, int32 [rows, K], and which rows the first chooser has left undecided, bool [rows].

    one: of the group's sequences.
    """
    num_tokens = int(one.choices.view(LAYOUT)["num_tokens"][0, 0])
    tokens, is_late = packed[:, 1 : 1 + num_tokens].astype(np.int32), packed[:, 0] == 0
    own = (
        np.concatenate([np.arange(rows.start, rows.stop) for rows in group.rows])
        if one.may_wait
        else np.empty(0, np.int64)
    )
    left = np.flatnonzero(is_late[own])
    if len(left):
        rows = group.rest().take(left)
        for chooser in one.choosers[1:]:
            answered = Download(chooser(rows)).wait()
            tokens[own[left]] = answered[:, 1 : 1 + num_tokens]
            again = np.flatnonzero(answered[:, 0] == 0)
            if not len(again):
                break
            rows, left = rows.take(again), left[again]
    return tokens, is_late


def _answer(one: Asked, tokens_RK: np.ndarray) -> Answers:
    return Answers(tokens_RK[:, 0], _widen(tokens_RK, one.num_candidates) if one.num_candidates else None)


def _widen(tokens_RK: np.ndarray, num_candidates: int) -> np.ndarray:
    """A vocabulary of fewer than K tokens leaves columns to be filled."""
    missing = num_candidates - tokens_RK.shape[1]
    return np.pad(tokens_RK, ((0, 0), (0, missing)), "edge") if missing else tokens_RK


def logprobs(logits_RV: Tensor, targets_R1: Tensor, num_likeliest: int) -> Tensor:
    """int32 [R, 1 + 2T], floats by their bits: the target's log-probability, the T = num_likeliest likeliest tokens,
    their log-probabilities.
    """
    logs_RV = logits_RV.log_softmax(dim=1)
    of_targets = _bits(logs_RV.gather(1, targets_R1.clamp(min=0)))
    if not num_likeliest:
        return of_targets
    found = top_tokens(logits_RV, min(max(MOST_LIKELIEST, num_likeliest), logits_RV.shape[1]))
    order = found.values.sort(dim=1, descending=True, stable=True).indices[:, :num_likeliest]
    tokens_RT = found.tokens.gather(1, order)
    return torch.cat([of_targets, tokens_RT.int(), _bits(logs_RV.gather(1, tokens_RT))], dim=1)


def _bits(values: Tensor) -> Tensor:
    """The int32 values that have the bits of these floats."""
    return values.contiguous().view(torch.int32)


@dataclass
class LogProbabilities:
    """Log-probabilities that a device has been asked for, of the rows of some sequences.

    numbers: of the sequences. num_rows, num_likeliest: of each of them, its rows and T. packed: int32 [all rows, 1 + 2
    * most] on the device. most: the largest T. logits: [all rows, V].
    """

    numbers: list[int]
    num_rows: list[int]
    num_likeliest: list[int]
    packed: Tensor
    most: int
    logits: Tensor

    @staticmethod
    def launch(
        numbers: list[int], num_rows: list[int], num_likeliest: list[int], logits: Tensor, targets: Tensor
    ) -> LogProbabilities:
        """Gives the device its work. targets: int [all rows, 1]."""
        most = max(num_likeliest)
        return LogProbabilities(
            numbers, num_rows, num_likeliest, logprobs(logits, targets.long(), most), most, logits
        )  # fmt: skip

    def add_to(self, answers: list[Answers], late: list[np.ndarray], downloaded: np.ndarray) -> None:
        """Adds them to the answers of all sequences. late: which rows' targets were not what the device had been given,
        bool [R] of each sequence. downloaded: what was packed, as integers of any width.
        """
        table = downloaded.astype(np.int32).reshape(-1, 1 + 2 * self.most)
        self._renew(table, answers, late)
        floats, end = table.view(np.float32), 0
        for number, size, num in zip(self.numbers, self.num_rows, self.num_likeliest, strict=True):
            begin, end = end, end + size
            own = answers[number]
            own.logprobs, own.top_tokens = floats[begin:end, 0], table[begin:end, 1 : 1 + num]
            own.top_logprobs = floats[begin:end, 1 + self.most : 1 + self.most + num]

    def _renew(self, table: np.ndarray, answers: list[Answers], late: list[np.ndarray]) -> None:
        rows = np.flatnonzero(np.concatenate([late[number] for number in self.numbers]))
        if len(rows):
            targets = np.concatenate([answers[number].targets for number in self.numbers])[rows].astype(np.int64)
            logits = self.logits[upload(rows, self.logits.device)]
            table[rows, :1] = Download(logprobs(logits, upload(targets, logits.device)[:, None], 0)).wait()
