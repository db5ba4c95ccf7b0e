"""The system calls that a sandboxed program may not make, as a seccomp filter.

Namespaces hide the host; they do not bound what a program takes from the kernel. This filter
closes what the resource limits cannot count: new processes (``RLIMIT_NPROC`` does not bind root),
memory outside the address space (memfd, System V shared memory), nested namespaces and mounts,
socket families that a network namespace does not separate (vsock), and outliving its parent.
Threads stay allowed.

The filter is classic BPF as seccomp(2) takes it, for x86-64 and AArch64. A refused call fails with
``EPERM``, so the program sees an ordinary exception; a call through a foreign calling convention
kills it.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys

__all__ = ["seccomp_filter"]

# Numbers from the kernel's syscall tables; those above 423 are the same on both machines.
_COMMON = {
    "pidfd_getfd": 438,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
_X86_64 = {
    "shmget": 29,
    "fork": 57,
    "vfork": 58,
    "semget": 64,
    "msgget": 68,
    "ptrace": 101,
    "pivot_root": 155,
    "chroot": 161,
    "mount": 165,
    "umount2": 166,
    "init_module": 175,
    "mq_open": 240,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "finit_module": 313,
    "memfd_create": 319,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "ptrace": 117,
    "mq_open": 180,
    "msgget": 186,
    "semget": 190,
    "shmget": 194,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "perf_event_open": 241,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "finit_module": 273,
    "memfd_create": 279,
    "bpf": 280,
    "userfaultfd": 282,
}
# machine: (AUDIT_ARCH, refused calls, clone, socket, prctl)
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, 56, 41, 157),
    "aarch64": (0xC00000B7, _AARCH64, 220, 198, 167),
}
_CLONE3 = 435
_CLONE_THREAD = 0x00010000
_PR_SET_PDEATHSIG = 1
_X32_BIT = 0x40000000  # x86-64 only: the x32 calling convention, under the same AUDIT_ARCH
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: all bound to the (empty) network namespace

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _fail(number: int) -> bytes:
    return _step(_RETURN, 0x00050000 | number)


def _refuse(call: int, with_errno: int) -> bytes:
    return _step(_EQUAL, call, 0, 1) + _fail(with_errno)


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """The filter for ``machine`` (default: this one) as an array of ``struct sock_filter``.

    ``None`` where the machine's system calls are not known here.

    >>> len(seccomp_filter("x86_64")) % 8
    0
    >>> seccomp_filter("pdp11") is None
    True
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None or sys.maxsize < 2**32:
        return None
    arch, refused, clone, socket, prctl = known
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, arch, 1, 0), _step(_RETURN, _KILL)]
    steps += [_step(_LOAD, _NUMBER), _step(_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _KILL)]
    steps += [_refuse(call, errno.EPERM) for call in (refused | _COMMON).values()]
    # ENOSYS sends the C library back to clone, whose flags a filter can read.
    steps.append(_refuse(_CLONE3, errno.ENOSYS))
    steps += [
        _step(_EQUAL, clone, 0, 4),
        _step(_LOAD, _ARGUMENT_0),
        _step(_ANY_BIT, _CLONE_THREAD, 1, 0),
        _fail(errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, prctl, 0, 4),
        _step(_LOAD, _ARGUMENT_0),
        _step(_EQUAL, _PR_SET_PDEATHSIG, 0, 1),
        _fail(errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, socket, 0, len(_FAMILIES) * 2 + 2),
        _step(_LOAD, _ARGUMENT_0),
    ]
    for family in _FAMILIES:
        steps += [_step(_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW)]
    steps += [_fail(errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)]
    return b"".join(steps)
