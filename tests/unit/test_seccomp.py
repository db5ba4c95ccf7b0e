"""The system call filter, on machines that this one is not, too."""

import errno
import struct

import pytest

from adjudge.graders.code.bubblewrap import seccomp_filter


def decide(machine: str, arch: int, call: int, argument: int = 0) -> int:
    """What the filter says to a call: classic BPF, as far as the filter uses it."""
    code = seccomp_filter(machine)
    assert code is not None
    data = struct.pack("=IIQQ", call, arch, 0, argument)
    steps = list(struct.iter_unpack("=HBBI", code))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = steps[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        else:
            tests = {0x15: accumulator == value, 0x35: accumulator >= value}
            holds = tests.get(operation, bool(accumulator & value))
            at += if_true if holds else if_false


ALLOW, KILL, EPERM = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
MACHINES = {
    # name: (arch, {call: verdict}, clone, socket, prctl)
    "x86_64": (
        0xC000003E,
        {0: ALLOW, 1: ALLOW, 9: ALLOW, 59: ALLOW, 57: EPERM, 58: EPERM, 165: EPERM, 319: EPERM},
        56,
        41,
        157,
    ),
    "aarch64": (
        0xC00000B7,
        {63: ALLOW, 64: ALLOW, 222: ALLOW, 221: ALLOW, 40: EPERM, 97: EPERM, 279: EPERM},
        220,
        198,
        167,
    ),
}


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_filter_allows_work_and_threads_and_refuses_the_rest(machine: str) -> None:
    arch, verdicts, clone, sock, prctl = MACHINES[machine]
    for call, verdict in verdicts.items():
        assert decide(machine, arch, call) == verdict, call
    assert decide(machine, arch, clone, 0x3D0F00) == ALLOW  # what a thread is made with
    assert decide(machine, arch, clone, 17) == EPERM  # SIGCHLD: what fork is made with
    assert decide(machine, arch, clone, 0x4111) == EPERM  # CLONE_VFORK | CLONE_VM
    assert decide(machine, arch, prctl, 1) == EPERM  # PR_SET_PDEATHSIG
    assert decide(machine, arch, prctl, 15) == ALLOW  # PR_SET_NAME
    assert decide(machine, arch, 435) == 0x00050000 | errno.ENOSYS
    assert [decide(machine, arch, sock, family) for family in (1, 2, 10)] == [ALLOW] * 3
    assert decide(machine, arch, sock, 40) == 0x00050000 | errno.EAFNOSUPPORT
    assert decide(machine, 0x40000003, 1) == KILL  # 32-bit calls
    assert decide(machine, arch, 0x40000000 + 57) == KILL  # x32 calls
