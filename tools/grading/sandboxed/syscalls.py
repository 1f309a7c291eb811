"""Calls of the system that no sandboxed process needs: memory beyond its limits, and whatever would last beyond it.

System V's shared memory and a memfd count towards no limit of a process; a namespace of one's own would give the right to
mount as much; the kernel's keyrings outlive whoever wrote to them. A filter (seccomp) answers them with "not permitted".
"""

import ctypes
import platform
import struct

#: AUDIT_ARCH and the numbers, by machine.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NUMBERS = {
    "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "fsopen": (430, 430),
    "fsmount": (432, 432), "open_tree": (428, 428), "move_mount": (429, 429), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # of the filter's own machine
_ALLOW, _NOT_PERMITTED = 0x7FFF0000, 0x00050000 | 1
_OTHER_NUMBERS = 0x40000000  # x86's second table of the same calls


def why_not() -> str:
    """Why nothing can be forbidden here; empty if it can."""
    machine = platform.machine()
    return "" if machine in _MACHINES else f"nobody has written down the numbers of {machine}'s system calls"


def forbid() -> bool:
    """Refuse them from now on in this process, and in all that it starts; returns whether this system does."""
    if why_not():
        return False
    architecture, column = _MACHINES[platform.machine()]
    numbers = [each[column] for each in _NUMBERS.values()]
    refuse = len(numbers) + 1  # from the first comparison
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _NOT_PERMITTED), (_LOAD, 0, 0, 0)]
    steps += [(_AT_LEAST, refuse, 0, _OTHER_NUMBERS)]
    steps += [(_EQUAL, refuse - 1 - place, 0, number) for place, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOT_PERMITTED)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may
    return libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
