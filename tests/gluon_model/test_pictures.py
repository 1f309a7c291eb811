"""The model's timeline, its text and its slider say what happened."""

import pytest
import torch
import triton

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
    pytest.skip("the model needs Triton 3.8", allow_module_level=True)

from kernels import gluon_model
from kernels.gluon_model.picture import LETTERS, STATES, Track
from tests.gluon_model import gluon_kernels
from tests.gluon_model.cases import gemm, tensor_memory_gemm


@pytest.fixture(scope="module")
def ring():
    return gemm(gluon_kernels.gemm_ring, M=32, N=32, K=32 * 5, stages=3, block=(32, 32, 32))[0](schedule="greedy")


@pytest.fixture(scope="module")
def stuck():
    return gemm(gluon_kernels.gemm_ring, M=32, N=32, K=64, stages=1, block=(32, 32, 32))[0](schedule="greedy")


def test_every_load_and_product_is_in_the_track_once(ring):
    track = Track.of(ring.machines[0])
    flights = [operation.what for operation in track.flights]
    assert flights.count("TMA load") == 10 and flights.count("matrix product") == 5
    assert all(start < stop for start, stop in track.flights.values())
    assert sorted(track.buffers) == ["a[0]", "a[1]", "a[2]", "b[0]", "b[1]", "b[2]"]
    fills = {name: sum(state[2] == "filling" for state in states) for name, states in track.buffers.items()}
    assert fills == {"a[0]": 2, "a[1]": 2, "a[2]": 1, "b[0]": 2, "b[1]": 2, "b[2]": 1}


def test_a_buffer_is_never_filled_and_read_at_once_in_a_good_kernel(ring):
    track = Track.of(ring.machines[0])
    for states in track.buffers.values():
        spans = [s for s in track.shown(states, len(track.columns)) if s[2] != "full"]
        for a in spans:
            assert not any(a is not b and a[0] < b[1] and b[0] < a[1] for b in spans)


def test_a_deadlock_is_drawn_as_a_wait_without_end(stuck):
    track = Track.of(stuck.machines[0])
    endless = {who: event.what for who, _, stop, event in track.blocked if stop is None}
    assert endless == {"ring_consumer": "ready[0]", "ring_loader": "empty[0]"}
    texts = [text.get_text() for text in stuck.picture().axes[0].texts]
    assert "waits for empty[0] for ever" in texts and "waits for ready[0] for ever" in texts


def test_rows_letters_and_notes_of_the_figure(ring):
    figure = ring.picture()
    ax = figure.axes[0]
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows[:2] == ["ring_consumer", "ring_loader"] and "copy engine" in rows and "tensor core" in rows
    assert rows[-6:] == ["a[0]", "a[1]", "a[2]", "b[0]", "b[1]", "b[2]"]
    letters = [text.get_text() for text in ax.texts]
    assert letters.count("L") == 10 and letters.count("M") == 5 and letters.count("a") == 4
    assert "L start a load" in figure._supxlabel.get_text() and "c commit" not in figure._supxlabel.get_text()
    assert ax.get_xlabel() == "step of the run"


def test_a_part_of_a_run_has_rows_for_what_is_in_flight_in_it(ring):
    def rows(**part):
        return [label.get_text() for label in ring.picture(**part).axes[0].get_yticklabels()]

    track = Track.of(ring.machines[0])
    landed = max(stop for operation, (_, stop) in track.flights.items() if operation.engine == "copy engine")
    assert "copy engine" in rows(first=landed - 1) and "copy engine" not in rows(first=landed)
    assert len(rows(first=landed)) < len(rows())
    assert len(ring.picture(first=landed, cursor=landed).axes[0].get_yticklabels()) == len(rows())  # the slider's stand still


def test_nothing_is_said_by_color_alone():
    assert len({letter for letter, *_ in LETTERS.values()}) == len(LETTERS)
    assert len({hatch for _, hatch, _ in STATES.values()}) == len(STATES)


def test_the_same_run_gives_the_same_bytes():
    call, _ = tensor_memory_gemm(M=64, N=64, K=64, programs=1, stages=2, block=(64, 64, 32))
    first, second = call(schedule="random", seed=5), call(schedule="random", seed=5)
    assert first.picture().png() == second.picture().png()


def test_state_tells_lines_flights_barriers_and_buffers(ring, stuck):
    text = stuck.state(len(Track.of(stuck.machines[0]).columns) - 1)
    assert "ring_loader blocked on empty[0], parity 0" in text and "mbarrier.wait(ring.empty.index(slot)" in text
    assert "ready[0]: in phase 1, lacks 1 arrival" in text and "a[0]: filled" in text
    track = Track.of(ring.machines[0])
    start = next(start for operation, (start, _) in track.flights.items() if operation.what == "TMA load")
    text = ring.state(start)
    assert "TMA load of ring_loader, fills a[0]" in text and "a[0]: being filled" in text
    assert "ready[0]: in phase 0, lacks 4096 bytes" in text
    with pytest.raises(ValueError, match="step is 10000"):
        ring.state(10000)
    with pytest.raises(ValueError, match="first and last are 5 and 2"):
        ring.picture(first=5, last=2)


def test_a_program_that_did_nothing_has_nothing_to_show():
    result = gluon_model.run(gluon_kernels.nothing, (1,), torch.zeros(1))
    for show in (result.picture, result.player, lambda: result.state(0)):
        with pytest.raises(ValueError, match="of nothing took no step"):
            show()


def test_the_slider_steps_through_the_run(ring):
    pytest.importorskip("ipywidgets")
    box = ring.player()
    slider, image, text = box.children
    before = image.value
    slider.value = 20
    assert image.value != before and "step 20 of" in text.value
    assert ring.state(20).splitlines()[1] in text.value


def test_a_sweep_reads_out_what_each_schedule_found():
    call, _ = gemm(gluon_kernels.gemm_ring, M=32, N=32, K=64, stages=1, block=(32, 32, 32))
    sweep = call(run=gluon_model.check_all_schedules)
    assert not sweep.ok and sweep.same is None
    assert "5 schedules: 1 finding" in str(sweep) and "Found under every schedule." in str(sweep)
    good, _ = gemm(gluon_kernels.gemm_ring, M=32, N=32, K=64, stages=2, block=(32, 32, 32))
    assert str(good(run=gluon_model.check_all_schedules)).endswith("no finding, same bits.")


def test_a_timeline_says_in_words_what_it_draws(ring, stuck):
    alt = ring.picture().alt
    assert alt.startswith("A timeline of ") and "ring_loader (" in alt and "start a load ×10" in alt
    assert "copy engine (10 operations, up to " in alt and "buffers a[0], a[1], a[2], b[0]" in alt
    assert "ring_loader waits for empty[0] for ever." in stuck.picture().alt
    assert "for ever" in stuck.picture().alt and ring.picture(alt="Mine.").alt == "Mine."
