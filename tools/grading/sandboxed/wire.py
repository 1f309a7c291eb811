"""Messages between judge and sandboxed process: a header of JSON, and arrays, read without trusting either.

Nothing is unpickled. A reader says how much it is willing to take; whatever is longer, shorter or of another form is a
``WireError``.
"""

import json
import math
import socket
import struct
import time

import numpy

MOST_HEADER = 32 << 20  # bytes
MOST_ARRAYS = 1 << 30  # bytes of all arrays of a message
DTYPES = {"uint8", "int32", "int64"}
_START = struct.Struct("<4sI")
_MAGIC = b"kfm1"


class WireError(Exception):
    """What arrived is no message of this form."""


class Closed(WireError):
    """The other side is gone."""


class OutOfTime(Exception):
    """The other side did not answer in time."""


def send(connection: socket.socket, header: dict, arrays=(), until: float | None = None) -> None:
    """Send one message, before the moment ``until`` of ``time.monotonic()``."""
    arrays = list(map(numpy.ascontiguousarray, arrays))
    text = json.dumps([header, [[str(array.dtype), array.shape] for array in arrays]]).encode()
    parts = [_START.pack(_MAGIC, len(text)), text, *(array.data.cast("B") for array in arrays if array.size)]
    try:
        for part in parts:
            _wait(connection, until)
            connection.sendall(part)
    except TimeoutError:
        raise OutOfTime from None
    except OSError as error:
        raise Closed(str(error)) from None


def receive(connection: socket.socket, until: float | None = None) -> tuple[dict, list[numpy.ndarray]]:
    """Receive one message, before the moment ``until``."""
    magic, length = _START.unpack(_read(connection, _START.size, until))
    if magic != _MAGIC or length > MOST_HEADER:
        raise WireError("the answer is no message")
    try:
        header, described = json.loads(_read(connection, length, until))
        kinds = [(numpy.dtype(dtype), tuple(map(int, shape))) for dtype, shape in described if dtype in DTYPES]
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in kinds]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise WireError("the answer's header is none") from None
    if not isinstance(header, dict) or len(kinds) < len(described) or any(n < 0 for _, shape in kinds for n in shape):
        raise WireError("the answer's header is none")
    if sum(sizes) > MOST_ARRAYS:
        raise WireError(f"the answer is longer than {MOST_ARRAYS >> 20} MB")
    parts = (_read(connection, size, until) for size in sizes)
    return header, [numpy.frombuffer(part, dtype).reshape(shape) for part, (dtype, shape) in zip(parts, kinds)]


def _wait(connection, until):
    if until is None:
        connection.settimeout(None)
        return
    left = until - time.monotonic()
    if left <= 0:
        raise OutOfTime
    connection.settimeout(left)


def _read(connection, size: int, until) -> bytearray:
    data = bytearray()
    while len(data) < size:
        _wait(connection, until)
        try:
            part = connection.recv(min(size - len(data), 1 << 20))
        except TimeoutError:
            raise OutOfTime from None
        except OSError as error:
            raise Closed(str(error)) from None
        if not part:
            raise Closed("the connection was closed")
        data += part
    return data
