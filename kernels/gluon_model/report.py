"""What a program does wrong: collected as it runs, said at once where that is possible, explained at its end where not."""

from __future__ import annotations

from kernels.gluon_model.explain import Races, granted, line, parity


class Conflicts(Races):
    """Collects what one program does wrong; explains it when the program is over and everything is known."""

    def __init__(self, machine):
        self.machine = machine
        self._races: dict[tuple, list] = {}
        self._bare: list = []  # reads of memory that nobody has written

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
            + line(old.partition.name, old.place, f"writes {old.label}")
            + "\n"
            + line(new.partition.name, new.place, f"starts {new.operation.what}, which reads {new.label}")
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
            + line(product.issuer.name, product.place, "starts the product")
            + "\n"
            + line(me.name, place, "uses its result")
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
            f"{me.name} calls {use} on {barrier.label}, but {why}.\n" + line(me.name, place, use),
            barrier.label,
        )

    def initialized_twice(self, barrier) -> None:
        """A barrier is initialized while it is in use."""
        me, place = self.machine.me, self.machine.place()
        message = f"{me.name} initializes {barrier.label} a second time; mbarrier.invalidate it first.\n"
        self._add("barrier", me, place, message + line(me.name, place, "init"), barrier.label)

    def too_many_arrivals(self, barrier, arrival) -> None:
        """More arrivals in one phase than the barrier takes."""
        who = arrival.operation or arrival.partition.name
        self._add(
            "barrier",
            arrival.partition,
            arrival.place,
            f"{who} arrives on {barrier.label} more often than it was initialized for: phase {barrier.phase} takes "
            f"{barrier.count} and had {barrier.pending} left, not {arrival.count}.\n"
            + line(arrival.partition.name, arrival.place, "arrives"),
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
            + line(arrival.partition.name, arrival.place, "arrives")
            + f"\n  Wait for something that follows phase {barrier.phase - 1} before arriving again.",
            barrier.label,
        )

    def early_bytes(self, barrier, phase: int) -> None:
        """A copy to another CTA whose bytes another order of events counts for an earlier phase."""
        me, place = self.machine.me, self.machine.place()
        self._add(
            "barrier",
            me,
            place,
            f"{me.name} sends bytes for phase {phase} of {barrier.label} without knowing that phase {phase - 1} of it is "
            "complete: in another order of events they count for that phase, and its buffer is still to be read.\n"
            + line(me.name, place, "starts the TMA load")
            + f"\n  Wait for something that follows phase {phase - 1} of {barrier.label} before sending again.",
            barrier.label,
        )

    def overtaken_wait(self, wait) -> None:
        """A wait that another order of events blocks for two phases."""
        barrier = wait.barrier
        self._add(
            "wrong phase",
            wait.partition,
            wait.place,
            f"{wait.partition.name} waits for {parity(wait.parity)} of {barrier.label}. {granted(wait.phase)} lets it "
            f"pass, but nothing keeps the barrier from completing phase {wait.phase + 1} first, and then the same wait "
            f"blocks until phase {wait.phase + 2}.\n" + line(wait.partition.name, wait.place, "waits"),
            barrier.label,
        )

    def out_of_bounds(self, pointer, what: str, offset: int, size: int) -> None:
        """A pointer access outside its tensor."""
        me, place = self.machine.me, self.machine.place()
        self._add(
            "out of bounds",
            me,
            place,
            f"{me.name} {what} element {offset} of {pointer.name}, which has {size}.\n" + line(me.name, place, what),
        )

    # The end of the program.

    def deadlock(self) -> None:
        """Nobody can move: say who waits for what."""
        blocked = [p for p in self.machine.partitions if p.blocked is not None]
        apart = [p for p in self.machine.partitions if p.meets is not None]
        if not blocked and not apart:  # one that waits for the others to end, or for an operation: those waits always pass
            return
        lines = ["nobody can go on."]
        lines += [self._stuck(p.blocked) for p in blocked]
        lines += [line(p.name, p.meets, "waits for the cluster's other CTAs to come here") for p in apart]
        lines += [f"  {p.name} has returned." for p in self.machine.partitions if p.ended]
        if not blocked:
            self._add("deadlock", apart[0], apart[0].meets, "\n".join(lines))
            return
        first = min(blocked, key=lambda p: self._cause(p.blocked))
        self._add("deadlock", first, first.blocked.place, "\n".join(lines), first.blocked.barrier.label)

    def spinning(self, polls) -> None:
        """All programs poll counters that nobody moves on."""
        for partition, (place, what, value) in polls.places.items():
            self._add(
                "deadlock",
                partition,
                place,
                "all programs that run poll for counters, and nobody moves one on.\n"
                + line(partition.name, place, f"polls {what}, which stands at {value}"),
                None,
                what,
            )

    def order_of_sums(self, old, new) -> None:
        """Two additions to one block of global memory."""
        self._without_order(
            "order of sums",
            (old, f"sends {old.label}"),
            (new, f"sends {new.label}"),
            f"{new.label} is written by two copies, one of which adds, and nothing says which comes first: sums of floats "
            "depend on their order.",
            "The one has to wait until the other has reached memory, store_wait(0, read_only=False), and has released "
            "a counter that the one acquires.",
        )

    def unordered(self, name: str, old, new) -> None:
        """Two partitions, of one program or of two, touch the same element of global memory."""
        does = {True: "stores", False: "loads"}
        self._without_order(
            "race",
            (old, f"{does[old.write]} elements of {name}"),
            (new, f"{does[new.write]} elements of {name}"),
            f"elements of {name} are touched by {old.partition.name} and {new.partition.name}, of one program or of two, "
            "and nothing says which comes first.",
            "The one has to release a counter after it is done, which the other acquires before it begins.",
        )

    def _without_order(self, kind: str, old, new, said: str, cure: str) -> None:
        """A finding of two events, each with what it does: nothing says which comes first."""
        lines = [line(event.partition.name, event.place, does) for event, does in (old, new)]
        (old, _), (new, _) = old, new
        self._add(kind, new.partition, new.place, "\n".join([said, *lines, f"  {cure}"]), None, old.place.line)

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
        text = line(
            wait.partition.name,
            wait.place,
            f"waits for {parity(wait.parity)} of {barrier.label}",
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
                self._count_bytes(barrier, completed)
        for operation in self.machine.operations if completed else ():
            if operation.what != "commit" and not self.machine.known(operation):
                self._unfinished(operation)

    def _explain_bare(self, view, new) -> None:
        doing = f"starts the {new.operation.what}, which reads" if new.operation else "reads"
        lines = [
            f"{new.label} ({view.allocation.kind}) is read, but not all of it has been written.",
            line(new.partition.name, new.place, f"{doing} {new.label}"),
        ]
        wait = new.partition.waits[new.waits - 1] if new.waits else None
        if wait is not None and wait.phase < 0:
            lines.append(line(new.partition.name, wait.place, f"waits before it for parity 1 of {wait.barrier.label}"))
            lines.append(f"  {granted(-1)} lets that pass: nothing need have been loaded.")
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
            + line(operation.issuer.name, operation.place, f"starts the {operation.what}")
            + f"\n  {what} is missing at the end.",
        )

    def _count_bytes(self, barrier, completed: bool) -> None:
        for phase in sorted(set(barrier.announced) | set(barrier.loaded)):
            told, came = barrier.announced[phase], barrier.loaded[phase]
            if told == came:
                continue
            loads = barrier.loads[phase]
            expect = barrier.announcers.get(phase)
            if expect is None and not completed and self.machine.cluster is not None:
                continue  # another CTA's copies came, and its own partition was kept from coming so far
            partition, place = expect or (loads[0][0].issuer, loads[0][0].place)
            said = line(partition.name, place, f"announces {told} bytes") if expect else "  Nobody called expect."
            brought = "\n".join(
                line(load.issuer.name, load.place, f"brings {nbytes} bytes") for load, nbytes in loads
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
