"""Limit this process, then run a Python text in it: the innermost layer of every sandbox (standard library alone).

`python -c <this text> '{"limits": {"CPU": 10, …}, "filter": true}' <text to run> <its arguments>`. The filter (seccomp,
on x86-64 and ARM64) denies what a function that computes has no use for: more processes and threads, other programs,
sockets, namespaces and mounts, looking into other processes, and kernel objects that count against no limit.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
NUMBER_AT, MACHINE_AT = 0, 4  # fields of struct seccomp_data
ALLOW, DENY, KILL = 0x7FFF0000, 0x00050001, 0x80000000  # DENY: the call fails with EPERM
X32_CALLS = 0x40000000
"""x86-64's second call table begins here; a filter by number must cover it too."""

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine → (AUDIT_ARCH of linux/audit.h, column of `DENIED`)."""
# Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux; None: not there.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def _prctl(option: int, *values: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, *values, *(ctypes.c_ulong(0),) * (4 - len(values))) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def filter_calls() -> None:
    """Deny the calls of `DENIED` to this process for good; raises OSError where that can't be done."""
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no list of system calls for {machine}; known: {', '.join(MACHINES)}")
    code, column = MACHINES[machine]
    numbers = [row[column] for row in DENIED.values() if row[column] is not None]
    deny = len(numbers) + 1  # from the first of the comparisons: all of them, then ALLOW
    program = [
        (LOAD_WORD, 0, 0, MACHINE_AT),
        (JUMP_IF_EQUAL, 1, 0, code),
        (RETURN, 0, 0, KILL),
        (LOAD_WORD, 0, 0, NUMBER_AT),
        (JUMP_IF_AT_LEAST, deny, 0, X32_CALLS),
        *((JUMP_IF_EQUAL, deny - 1 - i, 0, number) for i, number in enumerate(numbers)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, DENY),
    ]
    instructions = (_Instruction * len(program))(*(_Instruction(*one) for one in program))
    _prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))
    found = _Program(len(program), instructions)
    _prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(found))


def main() -> None:
    """Limit, filter, run."""
    options, text = json.loads(sys.argv[1]), sys.argv[2]
    sys.argv = ["script", *sys.argv[3:]]
    _prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    for name, limit in options["limits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))
    if options["filter"]:
        filter_calls()
    exec(compile(text, "script", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
