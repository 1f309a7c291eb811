"""The judge's side of a submission: what the checks call, while the submission's own lines run in the sandbox.

``Remote`` is a launcher or a compiler of mods, ``RemotePipeline`` for a kernel on the model of
Gluon, ``RemoteTester`` for a clinic's test.

What comes back is bytes, numbers and short texts, each held to its form; the tensors that it is written to belong
to the judge.
"""

import functools
from types import SimpleNamespace

import numpy

from kernels.check.clinics import Tester
from kernels.check.submission import Call, Kernels, Outcome, Recorded, Submission
from tools.grading import foreign, texts
from tools.grading.bench import Bench, Told
from tools.grading.results import REPORTED
from tools.grading.sandboxed import traces, values

MOST_TEXT = 2000


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


class Remote(Submission):
    """A launcher of the submission: one process of the sandbox records it, another replays the kernels that were recorded.

    ``given``: Triton functions that the exercise gives, ``fields``: names of the released named tuples' members, ``emits``:
    "value" or "gradient" of a function that writes Triton for a score mod.
    """

    def __init__(self, function: str, bench: Bench, cells: list, given=(), fields=frozenset(), emits: str = ""):
        super().__init__(None, given)
        self.function, self.bench, self.cells, self.fields, self.emits = function, bench, cells, fields, emits
        self.sources: list[str] = []

    def record(self, calls: list[Call], outputs: dict[int, str]) -> Recorded:
        """As ``Submission.record``; a recording is a description and its arrays, and its kernels are nothing but Triton."""
        packed, mod = values.Packed(), calls[0].launch.get("mod")
        request = {"op": "record", "function": self.function, "given": list(self.given), "outputs": outputs}
        request["calls"] = [_call(packed, call) for call in calls]
        if self.emits:
            request |= {"emits": self.emits, "mod": mod.text, "tables": mod.names}
        try:
            answer, arrays = self.bench.ask("record", self.cells, request, packed.arrays)
        except Told as told:
            return Recorded(error=told.explained)
        for name in ("error", "on_host"):
            if answer.get(name):
                return Recorded(**{name: _phrases(answer[name])})
        launches = answer.get("launches")
        if not isinstance(launches, list) or not all(isinstance(one, dict) for one in launches):
            self.bench.spoilt("the launches")
        for launch in launches:
            try:
                texts.hold(str(launch.get("text")), self.fields)
            except texts.Unfinished as error:
                return Recorded(error=(_plain(str(error)), "nothing defines the name"))
            except texts.NotKernels as error:
                return Recorded(on_host=(_plain(f"{launch.get('name')} is not Triton alone: {error}"), TRITON_ALONE))
        self.sources = [source for source in answer.get("sources", []) if isinstance(source, str)]
        return Recorded((answer, arrays))

    def texts(self, recording) -> list[str]:
        """As ``Submission.texts``."""
        return [launch["text"] for launch in recording[0]["launches"]]

    def replay(self, case, *, traced: bool = False, poison: float | None = None, products: float = 1.0) -> Outcome:
        """As ``Submission.replay``, in the sandbox."""
        call = case.call(traced)
        found = self.recording(case, bool(call.far))
        if found.recording is None:
            return Outcome(found.error, found.on_host)
        # A traced call leaves out what is out of bounds; one that performs it may write anywhere in its process.
        room = "traced" if traced else "bare"
        try:
            how = {"traced": traced, "poison": poison, "products": products}
            packed, answer, arrays = self._replayed("replay", room, call, found, **how)
            remaining = _take(self.bench, packed, answer, arrays)
            try:
                launches = traces.unpack(answer.get("launches"), remaining)
            except (ValueError, OverflowError) as error:
                self.bench.spoilt(str(error))
        except Told as told:
            return Outcome(told.explained)
        undefined = answer.get("undefined")
        lines = [_plain(line) for line in undefined[:100]] if isinstance(undefined, list) else []
        return Outcome(_phrases(answer["error"]) if answer.get("error") else None, None, launches, lines)

    def kernels(self, case) -> Kernels:
        """As ``Submission.kernels``, in the sandbox."""
        found = self.recording(case)
        if found.recording is None:
            return Kernels(error=found.error or found.on_host)
        try:
            _, answer, _ = self._replayed("kernels", "traced", case.call(), found)
            try:
                prepared = [texts.prepared(one, self.fields) for one in answer["prepared"]]
            except texts.NotKernels as error:
                self.bench.spoilt(f"a kernel's text: {error}")
        except Told as told:
            return Kernels(error=told.explained)
        described, _ = found.recording
        numbers = _numbers([[one.get("name"), one.get("whole")] for one in described["launches"]])
        return Kernels(prepared, self.sources, _phrases(answer["error"]) if answer.get("error") else None, numbers)

    def _replayed(self, op, room, call, found, **more):
        packed, (described, arrays) = values.Packed(), found.recording
        request = {"op": op, "call": _call(packed, call), "given": list(self.given), "recording": described} | more
        request["storages"] = len(packed.arrays)
        return packed, *self.bench.ask(room, [], request, [*packed.arrays, *arrays])


GLUON_ALONE = "a kernel is made of Gluon's functions, numbers and other kernels"
TRITON_ALONE = "a kernel is made of Triton's functions, numbers and other kernels"


def _call(packed: values.Packed, call: Call) -> dict:
    """A call as data."""
    far = {id(tensor): strides for tensor, strides in call.far}
    launch = {name: packed.value(value) for name, value in call.launch.items() if name != "mod"}
    told = [far.get(id(tensor)) for tensor in call.args]
    return {"args": list(map(packed.value, call.args)), "far": told, "kwargs": launch}


class RemotePipeline:
    """A kernel that runs on the model of Gluon; ``model`` is that model, in the sandbox."""

    def __init__(self, function: str, pipeline: str, bench: Bench, cells: list):
        self.function, self.pipeline, self.bench, self.cells = function, pipeline, bench, cells

    @functools.cached_property
    def text(self) -> dict:
        """The kernel as a module's text, which is Gluon and nothing else; all that is run of the submission."""
        answer, _ = self.bench.ask("record", self.cells, {"op": "export", "function": self.function})
        if answer.get("error"):
            raise Told(*_phrases(answer["error"]))
        try:
            texts.hold(str(answer.get("text")))
        except texts.NotKernels as error:
            raise Told(_plain(f"the kernel is not Gluon alone: {error}"), GLUON_ALONE) from None
        return {"text": answer["text"], "lines": answer["lines"]}

    def prepare(self):
        """What the compiler needs of the kernel."""
        answer, _ = self.bench.ask("model", [], {"op": "prepare", "pipeline": self.pipeline} | self.text)
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
        request = {"op": "model", "grid": grid} | self.text | more
        request["args"] = [packed.value(arg) for arg in args]
        answer, arrays = self.bench.ask("model", [], request, packed.arrays)
        if answer.get("error"):
            raise Told(*_phrases(answer["error"]))
        return packed, answer, arrays

    def run(self, kernel, grid, *args):
        """What the partitions did, under one schedule."""
        _, answer, _ = self._ask(grid, args, sweep=False)
        events = [SimpleNamespace(**dict(zip(("who", "kind", "what"), map(_plain, one)))) for one in answer.get("events", [])]
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
    """A clinic's test, which says of each kernel whether anything is wrong with it.

    It is given a function that asks for the kernel to be run in another process, so it may be any Python: nothing of the
    kernel is in its own. For each kernel a new one is begun.
    """

    def __init__(self, function: str, bench: Bench, cells: list):
        super().__init__(None)
        self.function, self.bench, self.cells = function, bench, cells

    def finds(self, source: str, function: str) -> tuple[object, tuple[str, str] | None]:
        """As ``Tester.finds``, in the sandbox."""
        self.bench.close("tests")
        kernel = {"op": "run", "source": source, "function": function}
        try:
            answer, arrays = self.bench.ask("tests", self.cells, {"op": "find", "test": self.function})
            while isinstance(asked := answer.get("run"), dict):
                try:
                    done = self.bench.ask("kernel", [], kernel | {"call": asked}, arrays)
                except Told as told:
                    done = {"error": told.explained}, []
                answer, arrays = self.bench.ask("tests", self.cells, *done)
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
