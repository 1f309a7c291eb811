"""Races in words: two accesses that nothing orders, and which wait or arrival should have."""

from __future__ import annotations

from kernels.gluon_model.findings import Finding
from kernels.gluon_model.source import Place


def line(who: str, place: Place, what: str) -> str:
    """Who does what, on which line."""
    return f"  {who}, {place.where}: {what}\n      {place.text}"


def parity(number: int) -> str:
    """A parity in words."""
    return f"parity {number}"


def granted(phase: int) -> str:
    """What lets a wait for this phase pass, at the beginning of a sentence."""
    if phase < 0:
        return "A fresh barrier, which counts as having completed a phase of parity 1,"
    return f"Phase {phase}"


class Races:
    """Explains what two accesses did to each other; ``Conflicts`` collects them."""

    machine: object
    _step = 0  # of what is being explained

    def _add(self, kind: str, partition, place: Place, message: str, barrier: str | None = None, *also, step=None):
        step = len(self.machine.events) if step is None else step
        finding = Finding(kind, self.machine.program, partition.name, place, barrier, message, step)
        self.machine.run.findings.add((place.file, place.line, *also), finding)

    def _explain(self, allocation, old, new) -> None:
        if allocation.kind == "barrier":
            return self._barrier_race(old, new)
        reader, writer = (old, new) if new.write else (new, old)
        if old.write and new.write:
            self._overwrite(old, new, "writes")
        elif writer.operation is not None:
            self._load_and_read(reader, writer)
        elif reader.operation is not None:
            self._overwrite(reader, writer, "reads")
        else:
            self._plain(old, new)

    def _barrier_race(self, old, new) -> None:
        maker, user = (old, new) if old.write else (new, old)
        self._add(
            "barrier",
            maker.partition,
            maker.place,
            f"{maker.partition.name} initializes or invalidates {maker.label} while {user.partition.name} may use it.\n"
            + line(maker.partition.name, maker.place, f"makes or ends {maker.label}")
            + "\n"
            + line(user.partition.name, user.place, f"uses {user.label}")
            + "\n  Initialize barriers before warp_specialize and invalidate them after it.",
            maker.label,
            step=self._step,
        )

    def _plain(self, old, new) -> None:
        does = {True: "writes", False: "reads"}
        self._add(
            "race",
            new.partition,
            new.place,
            f"{new.label} is touched by {old.partition.name} and {new.partition.name}, and nothing orders the two.\n"
            + line(old.partition.name, old.place, f"{does[old.write]} {old.label}")
            + "\n"
            + line(new.partition.name, new.place, f"{does[new.write]} {new.label}")
            + "\n  Let one arrive on a barrier after its access, and the other wait for it before its own.",
            None,
            old.place.line,
            step=self._step,
        )

    def _load_and_read(self, reader, writer) -> None:
        """An operation writes what somebody reads, unordered: who was to wait for whom shows in the waits made."""
        barrier, phase = self._signal(writer.operation, reader)
        waits = [w for w in reader.partition.waits[: reader.waits] if w.barrier is barrier]
        if barrier is not None and 0 < len(waits) <= phase:
            self._overwrite(reader, writer, "reads")
        else:
            self._early(reader, writer, barrier, phase, waits)

    @staticmethod
    def _signal(operation, reader):
        """The barrier by which the reader was to learn of an operation, and its phase: one that it does wait for."""
        before = {w.barrier for w in reader.partition.waits[: reader.waits]}
        ever = {w.barrier for w in reader.partition.waits}
        ranked = sorted(operation.signals, key=lambda s: (s[0] in before, s[0] in ever))
        return ranked[-1] if ranked else (None, 0)

    def _early(self, reader, writer, barrier, phase, waits) -> None:
        doing = f"starts {reader.operation.what}, which reads" if reader.operation else "reads"
        lines = [
            f"{reader.label} is read although {writer.operation} may not have filled it yet.",
            line(writer.partition.name, writer.place, f"starts the {writer.operation.what} into {writer.label}"),
            line(reader.partition.name, reader.place, f"{doing} {reader.label}"),
        ]
        who = reader.partition.name
        if barrier is None:
            lines.append(f"  The {writer.operation.what} signals no barrier that {who} could wait for.")
        elif not waits:
            lines.append(f"  It signals {barrier.label}, for which {who} has not waited before it reads.")
        else:
            last = waits[-1]
            lines.append(
                f"  It completes phase {phase} ({parity(phase % 2)}) of {barrier.label}. {who} waited for "
                f"{parity(last.parity)} at {last.place.where}. {granted(last.phase)} lets that pass."
            )
        kind = "wrong phase" if waits else "early read"
        place = waits[-1].place if waits else reader.place
        self._add(
            kind,
            reader.partition,
            place,
            "\n".join(lines),
            barrier and barrier.label,
            writer.place.line,
            step=self._step,
        )

    def _overwrite(self, first, second, does: str) -> None:
        """``second`` writes over what ``first`` may still read (or write)."""
        doing = f"starts the {first.operation.what}, which {does}" if first.operation else does
        into = f"starts the {second.operation.what} into" if second.operation else "writes"
        still = "still read it" if does == "reads" else "not be complete"
        who = first.operation or first.partition.name
        lines = [
            f"{second.label} is overwritten while {who} may {still}.",
            line(first.partition.name, first.place, f"{doing} {first.label}"),
            line(second.partition.name, second.place, f"{into} {second.label}"),
        ]
        release, barrier = self._release(first, second), None
        me, other = second.partition.name, first.partition.name
        storing = first.operation is not None and first.operation.what == "TMA store"
        if storing and first.partition is second.partition:
            lines.append("  store_wait is missing between them, or allows too many pending stores.")
        elif release is not None:
            wait, arrival = release
            barrier = wait.barrier.label
            waited = f"  {me} waited for {parity(wait.parity)} of {barrier} ({wait.place.where})"
            if wait.phase < 0:
                lines.append(f"{waited}. {granted(-1)} lets that pass.")
            else:
                why = f"the {first.operation.what} of {first.place.where}" if first.operation else "the read"
                lines.append(
                    f"{waited}, which {other} signalled at {arrival.place.where}: {why} need not be over then."
                )
                if storing:
                    lines.append("  store_wait is missing before that arrival, or allows too many pending stores.")
        elif does == "writes" and first.operation is not None:
            barrier = first.operation.signals[0][0].label if first.operation.signals else None
            lines.append(
                f"  Before it, {me} waits neither for {barrier or 'a barrier'} nor for anything that follows it."
            )
        else:
            lines.append(
                f"  Before it, {second.partition.name} waits for no barrier that {first.partition.name} signals when it "
                "is done."
            )
        kind = "early overwrite"
        self._add(kind, second.partition, second.place, "\n".join(lines), barrier, first.place.line, step=self._step)

    def _release(self, first, second):
        """The last wait of the overwriter on a barrier that the reader arrives on, and the arrival it stands for."""
        signalled = {barrier for barrier, _ in second.operation.signals} if second.operation else set()
        for wait in reversed(second.partition.waits[: second.waits]):
            if wait.barrier in signalled:
                continue
            arrivals = [a for phase in wait.barrier.arrivals.values() for a in phase if a.partition is first.partition]
            if arrivals:
                mine = [a for a in wait.barrier.arrivals[wait.phase] if a.partition is first.partition]
                return wait, (mine or arrivals)[0]
        return None
