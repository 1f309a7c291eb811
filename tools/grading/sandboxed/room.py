"""Where a submission's cells run, and where its launches do: two processes, each of which is asked by the judge.

In the first, cells may be any Python. What it says is data: a recording of launches (``recordings``), a text, an answer. The
second has seen no line of a cell, only kernels' texts that the judge has read.
"""

import ast
import codeop
import contextlib
import functools
import linecache
import os
import re
import types

import numpy
import torch

from kernels.check import explanations
from kernels.check.clinics.faulty_kernel import launcher
from kernels.check.clinics.worksheets import Tester
from kernels.check.emitted import run_gradient, run_value
from kernels.check.replay import launches_on
from kernels.check.submission import Call, recorded, replayed, sources_of
from kernels.lab import _child
from kernels.lab.compile_report import prepare
from kernels.lab.trace import trace

from . import recordings, traces, values

# What is in this package is no line of a learner's.
explanations._OURS = (*explanations._OURS, os.path.dirname(os.path.abspath(__file__)) + os.sep)


class _IPython:
    """What a cell's commands are given: they do nothing."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Room:
    """One submission's namespace, or one for its kernels. ``ask`` sends the judge a message, and waits for the answer."""

    def __init__(self, ask=None):
        self.ask = ask

    def load(self, cells) -> dict:
        """Execute cells ``[id, source, names, error]``, statement by statement: one that fails leaves its error under names
        that it, or else its cell, should have defined; the next one runs."""
        broken, self._errors, self._compiled = {}, {}, codeop.Compile()  # which keeps a `from __future__`, as IPython does
        self.namespace = {"__name__": "__main__"}
        for name, source, defines, error in cells:
            failed = [((), (error, "nothing of this cell was run"))] if error else self._execute(f"<cell {name}>", source)
            missing = [each for each in defines if self.namespace.get(each) is None]
            if failed and missing:
                _, broken[name] = failed[0]
                self._errors |= dict.fromkeys(missing, broken[name])
            for names, explained in failed:
                self._errors |= {each: explained for each in names if self.namespace.get(each) is None}
        return {"broken": broken}

    def _execute(self, filename: str, source: str):
        """The errors of a cell's statements, explained, each with the names that its statement binds."""
        lines = [line + "\n" for line in source.split("\n")]
        linecache.cache[filename] = (len(source), None, lines, filename)  # Triton reads a kernel's source back by this name
        self.namespace["get_ipython"] = _IPython
        left = ast.parse(source).body
        for _ in range(2):  # what needs a helper that is defined below it runs at the second try
            failed, statements = [], left
            left = [statement for statement in statements if not self._run(statement, filename, failed)]
        return failed

    def _run(self, statement, filename: str, failed: list) -> bool:
        """Whether a statement runs; if not, its error, explained, is added to ``failed``."""
        try:
            exec(self._compiled(ast.Module([statement], []), filename, "exec"), self.namespace)
            return True
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # a notebook is stopped by these, and goes on
            failed.append((_bound(statement), explanations.explain(raised)))
            return False

    def record(self, request: dict, arrays) -> tuple[dict, list]:
        """What two calls of a launcher launch; or the error that ended one, or what it computed itself, in words."""
        unpacked = values.Unpacked(arrays)
        calls = [_call(one, unpacked) for one in request["calls"]]
        if lacking := self._errors.get(request["function"]):
            return {"error": lacking}, []
        function, outputs = self._launcher(request), {int(place): name for place, name in request["outputs"].items()}
        found = recorded(function, calls, outputs, tuple(request["given"]))
        if found.recording is None:
            return {"error": self._told(found.error), "on_host": found.on_host}, []
        try:
            described, parts = recordings.pack(found.recording, sources_of, set(request["known"]))
        except ValueError as error:
            return {"error": ["ValueError: " + str(error), "a kernel uses constants, other kernels and Triton"]}, []
        return described | {"lacking": self._errors}, parts

    def _launcher(self, request):
        """The function that is called: the submission's own, or, around what it emits, the check's."""
        function = self.namespace.get(request["function"])
        if "emits" not in request:
            return function
        mod = types.SimpleNamespace(names=request["tables"], function=functools.partial(_mod, request["mod"]))
        around = (run_value if request["emits"] == "value" else run_gradient)(function)
        return functools.partial(around, mod=mod)

    def replay(self, request: dict, arrays) -> tuple[dict, list]:
        """The launches of a recording on other values; answers with the storages that changed and the trace."""
        recording, call, unpacked = _recording(request, arrays)
        before = [values.bytes_of(storage).copy() for storage in unpacked.storages]
        how = {name: request[name] for name in ("traced", "poison", "products")}
        outcome = replayed(recording, call, tuple(request["given"]), **how)
        after = [values.bytes_of(storage) for storage in unpacked.storages]
        changed = [i for i, (old, new) in enumerate(zip(before, after)) if not numpy.array_equal(old, new)]
        described, parts = traces.pack(outcome.launches)
        header = {"error": outcome.error, "changed": changed, "launches": described}
        return header | {"undefined": list(outcome.undefined)}, [*(after[i] for i in changed), *parts]

    def kernels(self, request: dict, arrays) -> tuple[dict, list]:
        """What the compiler needs of each launch of a recording; nothing is launched."""
        recording, call, _ = _recording(request, arrays)
        try:
            launches = launches_on(recording, call.given)
            return {"prepared": [_six_texts(prepare(one.kernel, **given, **one.options)) for one, given in launches]}, []
        except Exception as raised:
            return {"prepared": [], "error": explanations.explain(raised)}, []

    def export(self, request: dict, arrays) -> tuple[dict, list]:
        """A kernel as a module's text."""
        try:
            text, lines = _child.export(self.namespace.get(request["function"]), {})
            return {"text": text, "lines": lines}, []
        except Exception as raised:
            return {"error": self._errors.get(request["function"]) or self._told(explanations.explain(raised))}, []

    def prepare(self, request: dict, arrays) -> tuple[dict, list]:
        """What the compiler needs of a kernel that runs on the model of Gluon."""
        from kernels.check.exercises import pipeline_clinic

        try:
            kernel, _ = recordings.defined(request["text"], request["lines"])
            spec = getattr(pipeline_clinic, request["pipeline"]).compiles
            return {"prepared": _six_texts(prepare(kernel, *spec.args()))}, []
        except Exception as raised:
            return {"error": explanations.explain(raised)}, []

    def _told(self, error):
        """An error, or, where it is a name that nothing defines, that of the cell which should have defined it."""
        name = re.search(r"NameError: name '(\w+)'", error[0]) if error else None
        return self._errors.get(name[1], error) if name else error

    def find(self, request: dict, arrays) -> tuple[dict, list]:
        """What a clinic's test says of one kernel, whose launches it asks for."""
        heard, recording = [], trace.recording

        @contextlib.contextmanager
        def hearing(**how):
            with recording(**how) as recorded:
                heard.append(recorded.launches)
                yield recorded

        def kernel(*args, **launch):
            packed = values.Packed()
            call = {"args": list(map(packed.value, args)), "kwargs": {k: packed.value(v) for k, v in launch.items()}}
            answer, arrays = self.ask({"run": call}, packed.arrays)
            for storage in packed.arrays if "launches" in answer else ():
                storage[:] = arrays.pop(0)
            launches = traces.unpack(answer.get("launches", []), arrays)
            for each in heard:
                each += launches
            if answer["error"]:
                raise RuntimeError(": ".join(answer["error"]))

        if lacking := self._errors.get(request["test"]):
            return {"answer": None, "error": lacking}, []
        trace.recording = hearing
        answer, error = Tester(self.namespace.get(request["test"])).said(kernel)
        return {"answer": _plain(answer), "error": self._told(error)}, []

    def run(self, request: dict, arrays) -> tuple[dict, list]:
        """One call of a clinic's kernel, which comes as text: the storages that it leaves, and the trace."""
        unpacked, error = values.Unpacked(arrays), None
        args = [unpacked.value(each) for each in request["call"]["args"]]
        launch = {name: unpacked.value(each) for name, each in request["call"]["kwargs"].items()}
        with trace.recording() as recorded:
            try:
                launcher(request["source"], request["function"])(*args, **launch)
            except Exception as raised:
                error = explanations.explain(raised)
        described, parts = traces.pack(recorded.launches)
        return {"error": error, "launches": described}, [*map(values.bytes_of, unpacked.storages), *parts]

    def said(self, request: dict, arrays) -> tuple[dict, list]:
        """The diagnosis of a clinic's kernel, a dict of words and numbers."""
        value = self.namespace.get(request["name"])
        return {"answer": _plain(value)}, []

    def model(self, request: dict, arrays) -> tuple[dict, list]:
        """One launch on the model of Gluon, under one schedule or under all."""
        from kernels import gluon_model

        unpacked = values.Unpacked(arrays)
        args = [unpacked.value(each) for each in request["args"]]
        try:
            kernel, _ = recordings.defined(request["text"], request["lines"])
            if request["sweep"]:
                most = request["most_steps"]
                found = gluon_model.check_all_schedules(kernel, request["grid"], *args, most_steps=most)
                findings = [
                    {"kind": one.kind, "barrier": str(one.barrier or ""), "partition": str(one.partition)}
                    | {"message": one.message, "place": {"line": one.place.line, "text": one.place.text}}
                    for one in found.findings
                ]
                everything = list(range(len(unpacked.storages)))
                return {"findings": findings, "changed": everything}, list(map(values.bytes_of, unpacked.storages))
            (machine,) = gluon_model.run(kernel, request["grid"], *args).machines
            events = [{"who": str(one.who), "kind": str(one.kind), "what": str(one.what)} for one in machine.events]
            everybody = [{"name": str(partition.name)} for partition in machine.everybody]
            return {"machine": {"events": events, "everybody": everybody}}, []
        except Exception as raised:
            return {"error": explanations.explain(raised)}, []


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or a part of it."""
    nodes = list(ast.walk(statement))
    found = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return found | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _call(given: dict, unpacked) -> Call:
    """A call as the judge describes it."""
    args = [unpacked.value(each) for each in given["args"]]
    launch = {name: unpacked.value(each) for name, each in given["kwargs"].items()}
    return Call(args, launch, [(tensor, far) for tensor, far in zip(args, given["far"]) if far])


def _recording(request: dict, arrays):
    """``(recording, call, values)`` of a request, whose first arrays are the call's storages."""
    count = request["storages"]
    unpacked = values.Unpacked(arrays[:count])
    return recordings.unpack(request["recording"], arrays[count:]), _call(request["call"], unpacked), unpacked


def _mod(text: str, tables: dict):
    """A score mod, of the check's own text, with these tables."""
    return eval(f"lambda score, b, h, q_idx, kv_idx: {text}", {"torch": torch} | tables)


def _plain(value, depth: int = 2):
    """Words and numbers as they are, dicts of them too; of anything else, as of an integer beyond 64 bits, its type."""
    if isinstance(value, str):
        return value[:1000]
    if value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    if isinstance(value, dict) and depth and len(value) <= 20:
        return {str(_plain(name, 0))[:100]: _plain(each, depth - 1) for name, each in value.items()}
    return type(value).__name__


def _six_texts(one) -> list[str]:
    """A launch for the compiler, as texts."""
    return [one.kernel, one.text, *map(repr, (one.lines, one.signature, one.attributes, one.options))]
