"""The judge's side of a submission: what the checks call, while the submission's own lines run in the sandbox.

``Remote`` is a launcher or a compiler of mods, ``RemotePipeline`` for a kernel on the model of
Gluon, ``RemoteTester`` for a clinic's test.

What comes back is bytes, numbers and short texts. The tensors that it is written to belong to the judge; an answer that is
not of its form ends the submission (``Bench.reading``).
"""

import functools
from types import SimpleNamespace

from kernels.check.clinics import Tester
from kernels.check.submission import Call, Kernels, Outcome, Recorded, Submission
from tools.grading import foreign, texts
from tools.grading.bench import Bench, Told
from tools.grading.results import REPORTED
from tools.grading.sandboxed import traces, values

MOST_TEXT = 2000


def _plain(text) -> str:
    """The text, of which no line begins as one of a check's report does, and nothing that a terminal would obey."""
    return REPORTED.sub("\n ", foreign.plain(text, MOST_TEXT, lines=True))


def _phrases(answer: dict, name: str = "error") -> tuple[str, str] | None:
    """An error's two phrases, if there is one."""
    return tuple(map(_plain, [*answer[name], ""][:2])) if answer.get(name) else None


def _take(packed: values.Packed, answer: dict, arrays: list) -> list:
    """Write the storages that changed into ours; returns the other arrays."""
    for place, array in zip(answer["changed"], arrays):
        packed.arrays[place][:] = array
    return arrays[len(answer["changed"]) :]


class Remote(Submission):
    """A launcher of the submission: one process of the sandbox records it, another replays the kernels that were recorded.

    ``given``: Triton functions that the exercise gives, ``fields``: names of the released named tuples' members, ``emits``:
    "value" or "gradient" of a function that writes Triton for a score mod.
    """

    def __init__(self, function: str, bench: Bench, cells: list, given=(), fields=frozenset(), emits: str = ""):
        super().__init__(None, given)
        self.function, self.bench, self.cells, self.fields, self.emits = function, bench, cells, fields, emits

    def record(self, calls: list[Call], outputs: dict[int, str]) -> Recorded:
        """As ``Submission.record``; a recording is a description and its arrays, and its kernels are nothing but Triton."""
        packed, mod = values.Packed(), calls[0].launch.get("mod")
        request = {"op": "record", "function": self.function, "given": list(self.given), "outputs": outputs}
        request["calls"] = [_call(packed, call) for call in calls]
        request["known"] = sorted(texts.of_values() | self.fields)
        if self.emits:
            request |= {"emits": self.emits, "mod": mod.text, "tables": mod.names}
        try:
            answer, arrays = self.bench.ask("record", self.cells, request, packed.arrays)
            with self.bench.reading():
                if answer.get("error") or answer.get("on_host"):
                    return Recorded(None, _phrases(answer), _phrases(answer, "on_host"))
                for launch in answer["launches"]:
                    texts.hold(launch["text"], self.fields)
        except Told as told:
            return Recorded(error=told.explained)
        except texts.Unfinished as error:
            lacking = answer["lacking"] if isinstance(answer.get("lacking"), dict) else {}
            return Recorded(error=_phrases(lacking, error.name) or (_plain(str(error)), "nothing defines the name"))
        except texts.NotKernels as error:
            return Recorded(on_host=(_plain(f"a kernel is not Triton alone: {error}"), TRITON_ALONE))
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
        how = {"traced": traced, "poison": poison, "products": products}
        try:
            packed, answer, arrays = self._replayed("replay", room, call, found, **how)
            with self.bench.reading():
                launches = traces.unpack(answer["launches"], _take(packed, answer, arrays))
                return Outcome(_phrases(answer), None, launches, list(map(_plain, answer["undefined"][:100])))
        except Told as told:
            return Outcome(told.explained)

    def kernels(self, case) -> Kernels:
        """As ``Submission.kernels``, in the sandbox."""
        found = self.recording(case)
        if found.recording is None:
            return Kernels(error=found.error or found.on_host)
        described, _ = found.recording
        try:
            _, answer, _ = self._replayed("kernels", "traced", case.call(), found)
            with self.bench.reading():
                prepared = [texts.prepared(one, self.fields) for one in answer["prepared"]]
                numbers = [
                    (_plain(one["name"]), {_plain(name): int(n) for name, n in one["whole"].items()})
                    for one in described["launches"]
                ]
                return Kernels(prepared, list(map(str, described["sources"])), _phrases(answer), numbers)
        except (Told, texts.NotKernels) as error:
            return Kernels(error=getattr(error, "explained", ("a kernel's text is none", str(error))))

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


class RemotePipeline(Submission):
    """A kernel that runs on the model of Gluon; ``model`` is that model, in the sandbox."""

    def __init__(self, function: str, pipeline: str, bench: Bench, cells: list):
        super().__init__(None)
        self.function, self.pipeline, self.bench, self.cells = function, pipeline, bench, cells

    @functools.cached_property
    def text(self) -> dict:
        """The kernel as a module's text, which is Gluon and nothing else; all that is run of the submission."""
        answer = self._told("record", self.cells, {"op": "export", "function": self.function})[0]
        try:
            texts.hold(answer["text"])
        except texts.NotKernels as error:
            raise Told(_plain(f"the kernel is not Gluon alone: {error}"), GLUON_ALONE) from None
        return {"text": answer["text"], "lines": answer["lines"]}

    def _told(self, room, cells, request, arrays=()):
        answer, arrays = self.bench.ask(room, cells, request, arrays)
        if answer.get("error"):
            raise Told(*_phrases(answer))
        return answer, arrays

    def prepare(self):
        """What the compiler needs of the kernel."""
        answer = self._told("model", [], {"op": "prepare", "pipeline": self.pipeline} | self.text)[0]
        with self.bench.reading():
            return texts.prepared(answer["prepared"])

    @property
    def model(self):
        """What the check uses of ``kernels.gluon_model``."""
        return self

    def _run(self, grid, args, **more):
        packed = values.Packed()
        request = {"op": "model", "grid": grid, "args": list(map(packed.value, args))} | self.text | more
        return packed, *self._told("model", [], request, packed.arrays)

    def run(self, kernel, grid, *args):
        """What the partitions did, under one schedule."""
        _, answer, _ = self._run(grid, args, sweep=False)
        return _named({"machines": [answer["machine"]]})

    def check_all_schedules(self, kernel, grid, *args, most_steps):
        """What is found under all schedules; the tensors hold what the last one left."""
        packed, answer, arrays = self._run(grid, args, sweep=True, most_steps=most_steps)
        with self.bench.reading():
            _take(packed, answer, arrays)
            return _named({"findings": answer["findings"]})


def _named(value):
    """Tables as objects, texts as what may be printed."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _named(each) for name, each in value.items()})
    if isinstance(value, list):
        return list(map(_named, value))
    return _plain(value) if isinstance(value, str) else value


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
            return None, _phrases(answer)
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
