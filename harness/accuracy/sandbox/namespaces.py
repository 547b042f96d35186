"""Enter namespaces of our own with a root that holds only what is named, then execute a program there.

`python namespaces.py '{"steps": […], "environment": {…}, "folder": "/tmp"}' <program> <arguments>`: what `bwrap` does,
with unshare(2) alone, for machines that allow user namespaces and lack bubblewrap. On the standard library; needs
Linux 5.12 (mount_setattr(2)). Like `bwrap --die-with-parent` it ends with whoever started it, and all inside with it.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000  # linux/sched.h
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000  # linux/mount.h
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 0x1, 0x2, 0x4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG = 1
CALL_MOUNT_SETATTR = 442
CALL_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534
ROOT = "/proc"
"""The new root is put together on top of this folder, which exists everywhere and holds nothing that is bound."""
TMP_OPTIONS = "size={bytes},nr_inodes=1024,mode=700"
_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if one is None else os.fsencode(one) for one in (source, target, kind)]
    data = None if options is None else options.encode()
    _checked(f"mount {target}", _LIBC.mount(*words, ctypes.c_ulong(flags), data))


def _read_only(target: str, recursive: bool = True) -> None:
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0, 0, 0)  # struct mount_attr
    flags = ctypes.c_uint(AT_RECURSIVE if recursive else 0)
    _checked(
        f"mount_setattr {target}",
        _LIBC.syscall(
            ctypes.c_long(CALL_MOUNT_SETATTR),
            ctypes.c_int(AT_FDCWD),
            os.fsencode(target),
            flags,
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        ),
    )


def _die_with_parent() -> None:
    _checked("prctl", _LIBC.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0))


def _enter() -> None:
    """New namespaces, in which we are nobody: with no capability left once another program is executed."""
    uid, gid = os.geteuid(), os.getegid()
    flags = NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP
    _checked("unshare", _LIBC.unshare(ctypes.c_int(flags)))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def _build_root(steps: list[list[Any]]) -> None:
    """Carry out the steps on an empty root, which then takes the place of the old one."""
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for what, path, *more in steps:
        target = ROOT + path
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        if what == "link":
            Path(target).symlink_to(more[0])
            continue
        if what == "bind" and not Path(path).is_dir():
            Path(target).touch()
        else:
            Path(target).mkdir(parents=True, exist_ok=True)
        if what == "bind":
            _mount(path, target, None, MS_BIND | MS_REC)
            _read_only(target)
        elif what == "hide":
            _mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k")
            _read_only(target)
        elif what == "scratch":
            _mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, TMP_OPTIONS.format(bytes=more[0]))
        else:
            raise ValueError(f"no such step: {what}")
    os.chdir(ROOT)
    call = CALL_PIVOT_ROOT[os.uname().machine]
    _checked("pivot_root", _LIBC.syscall(ctypes.c_long(call), b".", b"."))
    _checked("umount", _LIBC.umount2(b".", ctypes.c_int(MNT_DETACH)))
    os.chdir("/")
    _read_only("/", recursive=False)


def main() -> None:
    """Set up in the parent, execute in its child, which is the first process of the new PID namespace."""
    layout, program = json.loads(sys.argv[1]), sys.argv[2:]
    _enter()
    _die_with_parent()
    watched, held = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(held)
            _die_with_parent()
            if select.select([watched], [], [], 0)[0]:  # nobody holds the other end: the parent is gone already
                os._exit(1)
            _build_root(layout["steps"])
            os.chdir(layout["folder"])
            os.execve(program[0], program, layout["environment"])
        except BaseException as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        finally:
            os._exit(127)
    os.closerange(3, held)
    for number in (0, 1):  # whoever reads must see the end when the program closes its own
        with contextlib.suppress(OSError):
            os.close(number)
    sys.exit(min(255, abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))))


if __name__ == "__main__":
    main()
