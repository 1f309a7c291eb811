"""Sandboxed processes for one submission: each room has one, a lost one is replaced, and after two nothing more is run."""

import contextlib
import time
from collections.abc import Callable

from tools.grading import texts
from tools.grading.sandbox import Connection, Limits, Template
from tools.grading.sandboxed import wire
from tools.grading.timer import patience

USED_UP = "the submission's time is used up"
LIVES = 2  # sandboxed processes that a submission may lose


class Bench:
    """Sandboxed processes for one submission: a new one where one was lost, until too many were."""

    def __init__(self, template: Callable[[], Template], limits: Limits, seconds: float, total: float, needs=()):
        self._template, self._limits, self._needs = template, limits, needs
        self._seconds, self._total, self._start, self._patience = seconds, total, time.monotonic(), 1.0
        self._open: dict[str, Connection] = {}
        self.incidents: list[str] = []  # "out of time" or "crashed", as they happened
        self.details: list[str] = []

    @property
    def total(self) -> float:
        """Seconds that all calls together may take, by the longest patience that was needed so far."""
        self._patience = max(self._patience, patience())
        return self._total * self._patience

    def ask(self, room: str, cells: list, header: dict, arrays=()) -> tuple[dict, list]:
        """Send a request to the process of a room, which has ``cells`` loaded. Raises ``Told`` if it cannot answer."""
        left = self._start + self.total - time.monotonic()
        seconds = min(self._seconds * patience(), left)
        if len(self.incidents) >= LIVES or left <= 0:
            if left <= 0 and "out of time" not in self.incidents:
                self._lost("out of time", USED_UP)
            raise Told(
                "not run: the calls before it ended the submission's program, or used up its time", self.incidents[-1]
            )
        connection = self._open.get(room)
        try:
            if connection is None:
                connection = self._open[room] = self._template().start(self._limits, self._needs)
                connection.ask({"op": "load", "cells": cells}, seconds=seconds)
            return connection.ask(header, arrays, seconds=seconds)
        except wire.OutOfTime:
            self.close(room)
            self._lost("out of time", USED_UP if seconds == left else f"a call did not end within {seconds:.0f} seconds")
            raise Told(
                "it did not come to its end, and was stopped", "a loop does not end, or takes far too long"
            ) from None
        except wire.Closed:
            self.close(room)
            self._lost("crashed", "the program ended in the middle of a call")
            raise Told(
                "the program ended in the middle of the call", "memory is used up, or the process was ended"
            ) from None
        except wire.WireError as error:
            self.close(room)
            self._lost("crashed", f"what came back is no answer: {error}")
            raise Told("what came back is no answer", str(error)) from None

    def _lost(self, what, detail):
        self.incidents.append(what)
        self.details.append(detail)

    @contextlib.contextmanager
    def reading(self):
        """While an answer is read: where it is not of its form, the sandboxed processes are given up."""
        try:
            yield
        except texts.NotKernels:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self.close()
            self._lost("crashed", f"what came back is no answer: {error}")
            raise Told("what came back is no answer", str(error)) from None

    def close(self, room: str | None = None) -> None:
        """End the sandboxed process of a room, or all."""
        for name in [room] if room else list(self._open):
            connection = self._open.pop(name, None)
            if connection is not None:
                connection.close()


class Told(Exception):
    """An error that the other side has told, in two phrases."""

    @property
    def explained(self) -> tuple[str, str]:
        """What and where, and what it usually means."""
        return self.args
