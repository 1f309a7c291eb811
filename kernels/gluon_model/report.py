"""Findings in words: what went wrong, who did it, on which line, at which barrier, and what to look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from kernels.gluon_model.source import Place

#: What each kind of finding means.
KINDS = {
    "byte count": "the bytes that a barrier was told to expect are not the bytes that its loads bring",
    "barrier": "a barrier is used before init, after invalidate, or by more arrivals than it was initialized for",
    "deadlock": "every partition waits for something that none of the others will do",
    "wrong phase": "a wait asks for a parity that an older phase satisfies, or that a newer one can take away",
    "early read": "memory is read although nothing makes sure that the load or product that fills it is complete",
    "early overwrite": "memory is overwritten although nothing makes sure that its reader is done",
    "missing wait": "the accumulator of an asynchronous matrix product is used before warpgroup_mma_wait",
    "missing fence": "what ordinary stores wrote is read by a copy or a product without fence_async_shared",
    "uninitialized": "memory is read that nobody has written",
    "race": "two partitions touch the same memory, one of them writes, and nothing orders them",
    "out of bounds": "an active lane of a pointer access lies outside its tensor",
    "unfinished": "the program ends while an operation is in flight",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a kernel.

    kind: a key of ``KINDS``. program: the first one in which it was seen. partition: whose line it is. place: that
    line. barrier: the barrier in question as the kernel calls it, such as ``ready[1]``, or None. message: the
    explanation. step: of the program, at which it showed. count: how often it did (other buffers, rounds, programs).
    """

    kind: str
    program: tuple[int, int, int]
    partition: str
    place: Place
    barrier: str | None
    message: str
    step: int = 0
    count: int = 1

    def __str__(self) -> str:
        again = "" if self.count == 1 else f"\n  ({self.count - 1} more of this kind at the same lines.)"
        return f"{self.kind}: {self.message}{again}"


@dataclass
class Findings:
    """All findings of a run, each pair of lines once."""

    found: dict[tuple, Finding] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)

    def add(self, key: tuple, finding: Finding) -> None:
        """Count a finding; ``key`` says which ones are the same."""
        key = (finding.kind, *key)
        self.found.setdefault(key, finding)
        self.counts[key] += 1

    def __iter__(self):
        for key, one in sorted(self.found.items(), key=lambda item: (item[1].program, item[1].step)):
            yield replace(one, count=self.counts[key])


def _line(who: str, place: Place, what: str) -> str:
    return f"  {who}, {place.where}: {what}\n      {place.text}"


def _parity(number: int) -> str:
    return f"parity {number}"


class Conflicts:
    """Collects what one program does wrong; explains it when the program is over and everything is known."""

    def __init__(self, machine):
        self.machine = machine
        self._races: dict[tuple, list] = {}
        self._bare: list = []  # reads of memory that nobody has written
        self._step = 0  # of what is being explained

    def _add(self, kind: str, partition, place: Place, message: str, barrier: str | None = None, *also, step=None):
        step = len(self.machine.events) if step is None else step
        finding = Finding(kind, self.machine.program, partition.name, place, barrier, message, step)
        self.machine.run.findings.add((place.file, place.line, *also), finding)

    # Collected for the end.

    def race(self, allocation, old, new) -> None:
        """Two accesses, at least one of them a write, that nothing orders."""
        key = (id(allocation), old.place, old.write, new.place, new.write)
        self._races.setdefault(key, [allocation, old, new, len(self.machine.events), 0])[4] += 1

    def uninitialized(self, view, new) -> None:
        """A read of memory that was never wholly written."""
        if view.allocation.kind != "barrier":
            self._bare.append((view, new, len(self.machine.events)))

    # Said at once.

    def missing_fence(self, old, new) -> None:
        """An operation reads what an ordinary store wrote, without a fence between."""
        self._add(
            "missing fence",
            old.partition,
            old.place,
            f"{old.label} is written by an ordinary store and read by {new.operation} without a fence between.\n"
            + _line(old.partition.name, old.place, f"writes {old.label}")
            + "\n"
            + _line(new.partition.name, new.place, f"starts {new.operation.what}, which reads {new.label}")
            + f"\n  Copies and products see memory by another way than stores: {old.partition.name} must call "
            "fence_async_shared() after the store and before it lets the reader go.",
        )

    def used_early(self, product) -> None:
        """The accumulator of a product that may still run is asked for."""
        me, place = self.machine.me, self.machine.place()
        self._add(
            "missing wait",
            me,
            place,
            f"{me.name} uses the accumulator of a matrix product that may still be running.\n"
            + _line(product.issuer.name, product.place, "starts the product")
            + "\n"
            + _line(me.name, place, "uses its result")
            + "\n  warpgroup_mma_wait(n) leaves the n youngest products running: the result is there after "
            "warpgroup_mma_wait(0, deps=...), or once n younger ones have been issued.",
        )

    def unready_barrier(self, barrier, use: str) -> None:
        """A barrier is used before init or after invalidate."""
        me, place = self.machine.me, self.machine.place()
        why = (
            f"it was invalidated at {barrier.ended.where}"
            if barrier.ended
            else "mbarrier.init has not been called on it"
        )
        self._add(
            "barrier",
            me,
            place,
            f"{me.name} calls {use} on {barrier.label}, but {why}.\n" + _line(me.name, place, use),
            barrier.label,
        )

    def initialized_twice(self, barrier) -> None:
        """A barrier is initialized while it is in use."""
        me, place = self.machine.me, self.machine.place()
        message = f"{me.name} initializes {barrier.label} a second time; mbarrier.invalidate it first.\n"
        self._add("barrier", me, place, message + _line(me.name, place, "init"), barrier.label)

    def too_many_arrivals(self, barrier, arrival) -> None:
        """More arrivals in one phase than the barrier takes."""
        who = arrival.operation or arrival.partition.name
        self._add(
            "barrier",
            arrival.partition,
            arrival.place,
            f"{who} arrives on {barrier.label} more often than it was initialized for: phase {barrier.phase} takes "
            f"{barrier.count} and had {barrier.pending} left, not {arrival.count}.\n"
            + _line(arrival.partition.name, arrival.place, "arrives"),
            barrier.label,
        )

    def early_arrival(self, barrier, arrival) -> None:
        """An arrival that another order of events counts for an earlier phase."""
        who = arrival.operation or arrival.partition.name
        self._add(
            "barrier",
            arrival.partition,
            arrival.place,
            f"{who} arrives on {barrier.label} without knowing that phase {barrier.phase - 1} of it is complete: in "
            "another order of events the arrival counts for that phase.\n"
            + _line(arrival.partition.name, arrival.place, "arrives")
            + f"\n  Wait for something that follows phase {barrier.phase - 1} before arriving again.",
            barrier.label,
        )

    def overtaken_wait(self, wait) -> None:
        """A wait that another order of events blocks for two phases."""
        barrier = wait.barrier
        self._add(
            "wrong phase",
            wait.partition,
            wait.place,
            f"{wait.partition.name} waits for {_parity(wait.parity)} of {barrier.label}. {_granted(wait.phase)} lets it "
            f"pass, but nothing keeps the barrier from completing phase {wait.phase + 1} first, and then the same wait "
            f"blocks until phase {wait.phase + 2}.\n" + _line(wait.partition.name, wait.place, "waits"),
            barrier.label,
        )

    def out_of_bounds(self, pointer, what: str, offset: int, size: int) -> None:
        """A pointer access outside its tensor."""
        me, place = self.machine.me, self.machine.place()
        self._add(
            "out of bounds",
            me,
            place,
            f"{me.name} {what} element {offset} of {pointer.name}, which has {size}.\n" + _line(me.name, place, what),
        )

    # The end of the program.

    def deadlock(self) -> None:
        """Nobody can move: say who waits for what."""
        blocked = [p for p in self.machine.partitions if p.blocked is not None]
        if not blocked:  # a partition that waits for the others to end, or for an operation: those waits always pass
            return
        lines = ["nobody can go on."]
        lines += [self._stuck(p.blocked) for p in blocked]
        lines += [f"  {p.name} has returned." for p in self.machine.partitions if p.ended]
        first = min(blocked, key=lambda p: self._cause(p.blocked))
        self._add("deadlock", first, first.blocked.place, "\n".join(lines), first.blocked.barrier.label)

    def _cause(self, wait) -> tuple:
        """Whose wait to name first: one that the other parity would grant, then one for a barrier nobody signals."""
        return (not self._begins(wait), any(wait.barrier.arrivals.values()), wait.partition.number)

    def _begins(self, wait) -> bool:
        """Whether a partition that fills memory is stuck before it filled any: it should begin with parity 1."""
        first = not any(w.barrier is wait.barrier for w in wait.partition.waits[:-1])
        fresh = wait.barrier.phase == 0 and wait.parity == 0 and not any(wait.barrier.arrivals.values())
        return first and fresh and wait.partition.fills

    def _stuck(self, wait) -> str:
        barrier = wait.barrier
        missing = [f"{barrier.pending} of {barrier.count} arrivals"] if barrier.pending else []
        if barrier.bytes > 0:
            missing.append(f"{barrier.bytes} bytes")
        if barrier.bytes < 0:
            missing.append(f"an expect for the {-barrier.bytes} bytes that have landed")
        text = _line(
            wait.partition.name,
            wait.place,
            f"waits for {_parity(wait.parity)} of {barrier.label}",
        )
        done = f"{barrier.phase} phases" if barrier.phase != 1 else "1 phase"
        last = f", the last with parity {(barrier.phase - 1) % 2}" if barrier.phase else ""
        text += (
            f"\n    {barrier.label} has completed {done}{last}; phase {barrier.phase} lacks {' and '.join(missing)}."
        )
        came = [a for arrivals in barrier.arrivals.values() for a in arrivals]
        if came:
            who = dict.fromkeys(f"{a.partition.name} ({a.place.where})" for a in came)
            text += f" So far it was signalled by {', '.join(who)}."
        else:
            text += " Nobody has signalled it yet."
        if self._begins(wait):
            text += (
                "\n    Parity 1 would pass at once: a fresh barrier counts as having completed a phase of parity 1. Who "
                "fills buffers that start out free begins with parity 1."
            )
        return text

    def finish(self, completed: bool) -> None:
        """Explain what was collected; ``completed``: the program came to its end."""
        raced = {(id(a), x.place) for a, old, new, *_ in self._races.values() for x in (old, new) if not x.write}
        for allocation, old, new, step, count in self._races.values():
            self._step = step
            for _ in range(count):
                self._explain(allocation, old, new)
        for view, new, step in self._bare:
            self._step = step
            if (id(view.allocation), new.place) not in raced:
                self._explain_bare(view, new)
        for allocation in self.machine.allocations:
            for barrier in allocation.barriers.values():
                self._count_bytes(barrier)
        for operation in self.machine.operations if completed else ():
            if operation.what != "commit" and not self.machine.known(operation):
                self._unfinished(operation)

    def _explain_bare(self, view, new) -> None:
        doing = f"starts the {new.operation.what}, which reads" if new.operation else "reads"
        lines = [
            f"{new.label} ({view.allocation.kind}) is read, but not all of it has been written.",
            _line(new.partition.name, new.place, f"{doing} {new.label}"),
        ]
        wait = new.partition.waits[new.waits - 1] if new.waits else None
        if wait is not None and wait.phase < 0:
            lines.append(_line(new.partition.name, wait.place, f"waits before it for parity 1 of {wait.barrier.label}"))
            lines.append(f"  {_granted(-1)} lets that pass: nothing need have been loaded.")
            self._add("wrong phase", new.partition, wait.place, "\n".join(lines), wait.barrier.label, step=self._step)
        else:
            if wait is None:
                lines.append(f"  {new.partition.name} has not waited for any barrier before it.")
            self._add("uninitialized", new.partition, new.place, "\n".join(lines), step=self._step)

    def _unfinished(self, operation) -> None:
        what = "store_wait(0)" if operation.what == "TMA store" else "a wait for it"
        self._add(
            "unfinished",
            operation.issuer,
            operation.place,
            f"the program ends and nobody has waited for {operation}: its shared memory is given to the next program "
            f"while the operation may still use it.\n"
            + _line(operation.issuer.name, operation.place, f"starts the {operation.what}")
            + f"\n  {what} is missing at the end.",
        )

    def _count_bytes(self, barrier) -> None:
        for phase in sorted(set(barrier.announced) | set(barrier.loaded)):
            told, came = barrier.announced[phase], barrier.loaded[phase]
            if told == came:
                continue
            loads = barrier.loads[phase]
            expect = barrier.announcers.get(phase)
            partition, place = expect or (loads[0].issuer, loads[0].place)
            said = _line(partition.name, place, f"announces {told} bytes") if expect else "  Nobody called expect."
            brought = "\n".join(
                _line(load.issuer.name, load.place, f"brings {sum(v.nbytes for v in load.writes)} bytes")
                for load in loads
            )
            after = (
                "It waits for bytes that never come."
                if told > came
                else "It completes before all its bytes have landed."
            )
            self._add(
                "byte count",
                partition,
                place,
                f"phase {phase} of {barrier.label} is told to expect {told} bytes, and its loads bring {came}.\n"
                f"{said}\n{brought or '  No load signals it.'}\n  {after}",
                barrier.label,
                step=0,
            )

    # Races.

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
            + _line(maker.partition.name, maker.place, f"makes or ends {maker.label}")
            + "\n"
            + _line(user.partition.name, user.place, f"uses {user.label}")
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
            + _line(old.partition.name, old.place, f"{does[old.write]} {old.label}")
            + "\n"
            + _line(new.partition.name, new.place, f"{does[new.write]} {new.label}")
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
            _line(writer.partition.name, writer.place, f"starts the {writer.operation.what} into {writer.label}"),
            _line(reader.partition.name, reader.place, f"{doing} {reader.label}"),
        ]
        who = reader.partition.name
        if barrier is None:
            lines.append(f"  The {writer.operation.what} signals no barrier that {who} could wait for.")
        elif not waits:
            lines.append(f"  It signals {barrier.label}, for which {who} has not waited before it reads.")
        else:
            last = waits[-1]
            lines.append(
                f"  It completes phase {phase} ({_parity(phase % 2)}) of {barrier.label}. {who} waited for "
                f"{_parity(last.parity)} at {last.place.where}. {_granted(last.phase)} lets that pass."
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
            _line(first.partition.name, first.place, f"{doing} {first.label}"),
            _line(second.partition.name, second.place, f"{into} {second.label}"),
        ]
        release, barrier = self._release(first, second), None
        me, other = second.partition.name, first.partition.name
        if first.operation is not None and first.operation.what == "TMA store":
            lines.append("  store_wait is missing between them, or allows too many pending stores.")
        elif release is not None:
            wait, arrival = release
            barrier = wait.barrier.label
            waited = f"  {me} waited for {_parity(wait.parity)} of {barrier} ({wait.place.where})"
            if wait.phase < 0:
                lines.append(f"{waited}. {_granted(-1)} lets that pass.")
            else:
                why = f"the {first.operation.what} of {first.place.where}" if first.operation else "the read"
                lines.append(
                    f"{waited}, which {other} signalled at {arrival.place.where}: {why} need not be over then."
                )
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


def _granted(phase: int) -> str:
    if phase < 0:
        return "A fresh barrier, which counts as having completed a phase of parity 1,"
    return f"Phase {phase}"
