"""The judge's side of a submission: what the checks call, while the submission's own lines run in the sandbox.

``Remote`` stands for a launcher, ``RemoteEmitter`` for a compiler of mods, ``RemotePipeline`` for a kernel on the model of
Gluon, ``RemoteTester`` for a clinic's test.

What comes back is bytes, numbers and short texts, each held to its form; the tensors that it is written to belong
to the judge.
"""

import ast
import re
from types import SimpleNamespace

import numpy

from kernels.check.clinics import Tester
from kernels.check.contestant import Contestant, Kernels, Outcome
from tools.grading import foreign, gate, texts
from tools.grading.bench import Bench, Told
from tools.grading.contestant import traces, values
from tools.grading.given import Given, is_kernel
from tools.grading.lines import Refused
from tools.grading.results import REPORTED

MOST_TEXT = 2000
MOST_ARMS = 5000
UNTOLD = "kernels:0:0:0:1"  # an arm that no compiler has seen


def _phrases(error) -> tuple[str, str]:
    """An error's two phrases, as text of limited length without anything that a terminal would obey."""
    said, means = (*error, "", "")[:2] if isinstance(error, list) else ("an error", "")
    return _plain(said), _plain(means)


def _plain(text) -> str:
    """The text, of which no line begins as one of a check's report does."""
    return REPORTED.sub("\n ", foreign.plain(text, MOST_TEXT, lines=True))


def _numbers(given) -> list[tuple[str, dict[str, int]]]:
    """What launches were given; of anything else than a name and a table of whole numbers, nothing."""
    pairs = [one for one in given[:100] if isinstance(one, list) and len(one) == 2] if isinstance(given, list) else []
    return [
        (_plain(kernel), {name: value for name, value in table.items() if type(value) is int and abs(value) < 1 << 63})
        for kernel, table in pairs
        if isinstance(table, dict) and len(table) < 100
    ]


def _arms(given) -> list[str]:
    """The arms of kernels that ran, as ``_child_main.place`` writes them; what is none, or one too many, is not let go by."""
    if not isinstance(given, list) or len(given) > MOST_ARMS:
        return [UNTOLD]
    return [one if isinstance(one, str) and re.fullmatch(r"\w{1,100}(:\d{1,6}){4}", one) else UNTOLD for one in given]


def _take(bench: Bench, packed: values.Packed, answer: dict, arrays: list) -> list:
    """Write the storages that changed into ours; returns the other arrays."""
    changed = answer.get("changed")
    if not isinstance(changed, list) or len(changed) > len(arrays) or len(set(map(str, changed))) != len(changed):
        bench.spoilt("the storages that changed")
    for place, array in zip(changed, arrays):
        if type(place) is not int or not 0 <= place < len(packed.arrays):
            bench.spoilt("a storage that was never sent")
        if array.dtype != numpy.uint8 or array.shape != packed.arrays[place].shape:
            bench.spoilt("a storage of another size")
        packed.arrays[place][:] = array
    return arrays[len(changed) :]


class Remote(Contestant):
    """A launcher of the submission. ``given``: Triton functions that the exercise gives, ``fields``: names of the
    released named tuples' members."""

    def __init__(self, function: str, bench: Bench, cells: list, given: tuple = (), fields: set[str] = frozenset()):
        super().__init__(None, given)
        self.function, self.bench, self.cells, self.fields = function, bench, cells, fields

    def call(self, tensors: list, launch: dict, *, traced: bool = False, poison: float | None = None) -> Outcome:
        """As ``Contestant.call``, in the sandbox."""
        # A traced call leaves strays out; one that performs them may write anywhere in its process, which is not asked again.
        room = "traced" if traced else "bare"
        try:
            more, rest = self._about(tensors, launch)
            packed, request = self._request("call", tensors, rest, more)
            request |= {"traced": traced, "poison": poison}
            answer, arrays = self._ask(room, request, packed)
            remaining = _take(self.bench, packed, answer, arrays)
            try:
                launches = traces.unpack(answer.get("launches"), remaining)
            except (ValueError, OverflowError) as error:
                self.bench.spoilt(str(error))
        except Told as told:
            return Outcome(told.explained)
        except _Nothing:
            return Outcome()
        if not answer.get("error"):
            arms = answer.get("arms")
            self.ran |= {arm: (tensors, launch) for arm in _arms(arms) if arm not in self.ran}
        undefined = answer.get("undefined")
        lines = [_plain(line) for line in undefined[:100]] if isinstance(undefined, list) else []
        return Outcome(_phrases(answer["error"]) if answer.get("error") else None, launches, lines)

    def kernels(self, tensors: list, launch: dict) -> Kernels:
        """As ``Contestant.kernels``, in the sandbox; a text that is not of kernels alone goes to no compiler."""
        try:
            more, rest = self._about(tensors, launch)
            packed, request = self._request("kernels", tensors, rest, more)
            answer, _ = self._ask("traced", request, packed)
            listed, sources = answer.get("prepared"), answer.get("texts")
            if not isinstance(listed, list) or not isinstance(sources, list) or len(listed) > 100 or len(sources) > 100:
                self.bench.spoilt("the kernels as text")
            try:
                prepared = [texts.prepared(one, self.fields) for one in listed]
            except texts.Unfinished as error:
                return Kernels(error=(str(error), "the kernel leaves before that line, or nothing defines the name"))
            except texts.NotKernels as error:
                self.bench.spoilt(f"a kernel's text: {error}")
        except Told as told:
            return Kernels(error=told.explained)
        except _Nothing:
            return Kernels()
        error = _phrases(answer["error"]) if answer.get("error") else None
        texts_alone = [source for source in sources if isinstance(source, str)]
        return Kernels(prepared, texts_alone, error, _numbers(answer.get("numbers")))

    def _about(self, tensors, launch) -> tuple[dict, dict]:
        """What else a request says, and the keyword arguments that go with it."""
        return {"function": self.function}, launch

    def _request(self, op, tensors, launch, more):
        packed = values.Packed()
        request = {"op": op, "given": list(self.given), "args": [packed.value(tensor.view) for tensor in tensors]}
        request["far"] = [tensor.far for tensor in tensors]
        return packed, request | {"kwargs": {name: packed.value(value) for name, value in launch.items()}} | more

    def _ask(self, room, request, packed):
        return self.bench.ask(room, self.cells, request, packed.arrays)


class _Nothing(Exception):
    """There is nothing to call."""


class RemoteEmitter(Remote):
    """A compiler of mods: its text is asked for in one contestant, and run in another that has seen none of its lines."""

    def __init__(self, function: str, kind: str, bench: Bench, cells: list, kernels: list, released: Given):
        super().__init__(function, bench, cells)
        self.kind, self.kernels_alone, self.released = kind, kernels, released

    def _about(self, tensors, launch):
        """Have the text emitted, and hold it to the list of kernels."""
        mod = launch["mod"]
        packed = values.Packed()
        views = [tensor.view for tensor in tensors]
        tables = {name: packed.value(view) for name, view in zip(mod.names, views[1:])}
        request = {"op": "emit", "function": self.function, "mod": mod.text, "tables": tables}
        answer, _ = self.bench.ask("emit", self.cells, request, packed.arrays)
        if answer.get("error"):
            raise Told(*_phrases(answer["error"]))
        text = answer.get("text")
        if text is None:
            raise _Nothing
        if not isinstance(text, str):
            raise Told("what was emitted is no text", "the function returns text")
        known = {name for _, source, *_ in self.kernels_alone for name in _kernels_in(source)}
        verdict = gate.emitted(text, self.released, known)
        if verdict.refusals:
            raise Refused(verdict.refusals[0])
        if verdict.unreadable:
            said = verdict.unreadable.replace("your cell", "your text")
            raise Told(said, "the text must be a function that Python can read")
        rest = {name: value for name, value in launch.items() if name != "mod"}
        return {"kind": self.kind, "text": text, "tables": len(mod.names)}, rest

    def _ask(self, room, request, packed):
        return self.bench.ask(f"text, {room}", self.kernels_alone, request, packed.arrays)


def _kernels_in(source: str) -> set[str]:
    return {statement.name for statement in ast.parse(source).body if is_kernel(statement)}


class RemotePipeline:
    """A kernel that runs on the model of Gluon; ``model`` is that model, in the sandbox."""

    def __init__(self, function: str, pipeline: str, bench: Bench, cells: list):
        self.function, self.pipeline, self.bench, self.cells = function, pipeline, bench, cells

    def prepare(self):
        """What the compiler needs of the kernel."""
        request = {"op": "prepare", "function": self.function, "pipeline": self.pipeline}
        answer, _ = self.bench.ask("host", self.cells, request)
        if answer.get("error"):
            raise Told(*_phrases(answer["error"]))
        try:
            return texts.prepared(answer.get("prepared"))
        except texts.NotKernels as error:
            self.bench.spoilt(f"the kernel's text: {error}")

    @property
    def model(self):
        """What the check uses of ``kernels.gluon_model``."""
        return self

    def _ask(self, grid, args, **more):
        packed = values.Packed()
        request = {"op": "model", "function": self.function, "grid": grid} | more
        request["args"] = [packed.value(arg) for arg in args]
        answer, arrays = self.bench.ask("host", self.cells, request, packed.arrays)
        if answer.get("error"):
            raise Told(*_phrases(answer["error"]))
        return packed, answer, arrays

    def run(self, kernel, grid, *args):
        """What the partitions did, under one schedule."""
        _, answer, _ = self._ask(grid, args, sweep=False)
        events = [SimpleNamespace(who=_plain(who), kind=_plain(kind)) for who, kind in answer.get("events", [])]
        everybody = [SimpleNamespace(name=_plain(name)) for name in answer.get("everybody", [])]
        return SimpleNamespace(machines=[SimpleNamespace(events=events, everybody=everybody)])

    def check_all_schedules(self, kernel, grid, *args, most_steps):
        """What is found under all schedules; the tensors hold what the last one left."""
        packed, answer, arrays = self._ask(grid, args, sweep=True, most_steps=most_steps)
        _take(self.bench, packed, answer, arrays)
        findings = answer.get("findings")
        if not isinstance(findings, list) or not all(isinstance(one, list) and len(one) == 6 for one in findings):
            self.bench.spoilt("the findings")
        found = [
            SimpleNamespace(
                kind=kind, barrier=_plain(barrier), partition=_plain(partition), message=_plain(message),
                place=SimpleNamespace(line=line if type(line) is int else 0, text=_plain(text)),
            )
            for kind, barrier, partition, message, line, text in findings
        ]  # fmt: skip
        return SimpleNamespace(findings=found)


class RemoteTester(Tester):
    """A clinic's test: each kernel is sent to it as text, and it says whether anything is wrong with that."""

    def __init__(self, function: str, bench: Bench, cells: list):
        super().__init__(None)
        self.function, self.bench, self.cells = function, bench, cells

    def finds(self, source: str, function: str) -> tuple[object, tuple[str, str] | None]:
        """As ``Tester.finds``, in the sandbox."""
        request = {"op": "find", "test": self.function, "source": source, "function": function}
        try:
            answer, _ = self.bench.ask("tests", self.cells, request)
        except Told as told:
            return None, told.explained
        if answer.get("error"):
            return None, _phrases(answer["error"])
        found = answer.get("answer")
        return found if isinstance(found, (bool, int, float, type(None))) else "text", None


def diagnosis(name: str, bench: Bench, cells: list) -> object:
    """What a submission says of a clinic's kernel: numbers and words, or the name of a type that is neither."""
    try:
        answer, _ = bench.ask("tests", cells, {"op": "said", "name": name})
    except Told:
        return None
    found = answer.get("answer")
    return found if isinstance(found, (dict, str, type(None))) else None
