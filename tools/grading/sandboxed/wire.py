"""Messages between judge and sandboxed process: a header of JSON and arrays as .npy bytes, read without trusting either.

Nothing is unpickled. A reader says how much it is willing to take; whatever is longer, shorter or of another form is a
``WireError``.
"""

import io
import json
import math
import socket
import struct
import time

import numpy

MOST_HEADER = 32 << 20  # bytes
MOST_ARRAYS = 1 << 30  # bytes of all arrays of a message
DTYPES = {"|u1", "<i4", "<i8"}
_START = struct.Struct("<4sII")
_LENGTH = struct.Struct("<Q")
_MAGIC = b"kfm1"


class WireError(Exception):
    """What arrived is no message of this form."""


class Closed(WireError):
    """The other side is gone."""


class OutOfTime(Exception):
    """The other side did not answer in time."""


def send(connection: socket.socket, header: dict, arrays=(), until: float | None = None) -> None:
    """Send one message, before the moment ``until`` of ``time.monotonic()``."""
    text = json.dumps(header).encode()
    parts = [_START.pack(_MAGIC, len(text), len(arrays)), text]
    for array in arrays:
        stream = io.BytesIO()
        numpy.lib.format.write_array(stream, numpy.ascontiguousarray(array), allow_pickle=False)
        parts += [_LENGTH.pack(stream.tell()), stream.getbuffer()]
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
    magic, length, count = _START.unpack(_read(connection, _START.size, until))
    if magic != _MAGIC or length > MOST_HEADER or count > 4096:
        raise WireError("the answer is no message")
    try:
        header = json.loads(_read(connection, length, until))
    except (ValueError, RecursionError):
        raise WireError("the answer's header is no JSON") from None
    if not isinstance(header, dict):
        raise WireError("the answer's header is no table")
    arrays, left = [], MOST_ARRAYS
    for _ in range(count):
        (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size, until))
        left -= size
        if left < 0:
            raise WireError(f"the answer is longer than {MOST_ARRAYS >> 20} MB")
        arrays.append(_array(_read(connection, size, until)))
    return header, arrays


def _array(data: bytes) -> numpy.ndarray:
    """The array of one .npy file, whose size must be that of its data before anything is allocated."""
    stream = io.BytesIO(data)
    try:
        version = numpy.lib.format.read_magic(stream)
        if version != (1, 0):
            raise WireError("an array's header has another version")
        shape, fortran, dtype = numpy.lib.format.read_array_header_1_0(stream, max_header_size=1000)
    except WireError:
        raise
    except Exception as error:  # numpy reads the header as Python: whatever is wrong with it, it is no header
        raise WireError(f"an array's header cannot be read: {error}") from None
    place = stream.tell()
    if dtype.str not in DTYPES or fortran or math.prod(shape) * dtype.itemsize != len(data) - place:
        raise WireError("an array is not what its header says")
    return numpy.frombuffer(data, dtype, offset=place).reshape(shape)


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
