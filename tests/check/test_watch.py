"""A call that does not end."""

import time

import pytest

from kernels.check import watch


class SlowToGo:
    """Its destructor computes until it is interrupted, which Python reports and forgets."""

    def __del__(self):
        busy(5)


def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_that_was_lost_in_a_destructor_comes_again(monkeypatch):
    monkeypatch.setattr(watch, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(watch, "AGAIN_SECONDS", 0.2)
    with pytest.raises(watch.TooSlow), watch.limited():
        SlowToGo()
        busy(5)
