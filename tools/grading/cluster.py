"""Judges on several machines: submissions are tasks of an existing Dask cluster, one thread a worker.

A worker needs this checkout on its PYTHONPATH and bubblewrap; what it grades comes with the task, and it writes nothing. One
that is lost gives its submission back to the scheduler; the result that arrives first is the one that counts.
"""

from collections.abc import Callable, Iterator

from distributed import Client, KilledWorker, as_completed

from tools.grading import judges
from tools.grading.results import Result

_NOBODY = 600  # seconds without any worker


def results(tasks: list, how, begun: Callable) -> Iterator[tuple]:
    """Each task with its result, as they arrive; ``begun(task)`` is called before."""
    with Client(how.scheduler, timeout=30, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=_NOBODY)
        waiting = {}
        for task in tasks:
            arguments = (task, *judges.content(task), how.unsafe, how.seconds, how.total)
            future = client.submit(judged, *arguments, key=f"grade-{task.student}-{task.key}", pure=False, retries=1)
            waiting[future] = task
        for future in as_completed(list(waiting), loop=client.loop):
            task = waiting.pop(future)
            begun(task)
            yield task, _result(task, future)
            future.release()


def _result(task, future) -> Result:
    error = future.exception()
    if error is None:
        return future.result()
    lost = isinstance(error, KilledWorker)
    return judges.crashed(task, "its worker came to its end several times" if lost else f"the judge failed: {error}")


def judged(task, released, data, notes, unusable, unsafe, seconds, total) -> Result:
    """One submission, by this worker's judge."""
    if judges._judge is None:
        judges.begin(unsafe, seconds, total)
    return judges.judge(task, released, data, notes, unusable)
