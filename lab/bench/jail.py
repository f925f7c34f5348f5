"""Restrict this process and run an untrusted program in it: `python -I jail.py SECONDS BYTES`.

stdin has one line with a secret, then the program. stdout gets one line of JSON, the method that restricts each
resource, and the secret after the program has run to its end. Only the standard library is needed.

On Linux, Landlock blocks all files except Python's own, which can be read. A filter of system calls blocks new
processes and programs, signals, sockets, and changes of owners, modes and times. An empty namespace blocks the network
as well. Processor time, memory and open files are limited, and nothing can be written to a file. On other systems only
the limits hold, and Python's socket module is removed. Not prevented: a program can find the secret in this process,
and can test whether a file exists.
"""

import ctypes
import json
import os
import platform
import resource
import struct
import sys

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # kernel constants, as in CLONE_NEWUSER, PR_SET_SECCOMP, ...
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's system calls; every architecture has these numbers
ABI, BENEATH = 1, 1  # Landlock's flag that requests its version, and the rule type for the files below a folder
READ_RIGHTS = 0b1101  # execute, read a file, read a folder
ALL_FILE_RIGHTS = (0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)  # bit sets, indexed by Landlock's version
MAX_OPEN_FILES = 64

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # index into the values of CALLS, and AUDIT_ARCH
NO_CALL = -1
CALLS = {  # system calls that fail, with their numbers by machine
    **{"socket": (41, 198), "socketpair": (53, 199), "io_uring_setup": (425, 425)},
    **{"clone": (56, 220), "clone3": (435, 435), "fork": (57, NO_CALL), "vfork": (58, NO_CALL)},
    **{"execve": (59, 221), "execveat": (322, 281), "unshare": (272, 97), "setns": (308, 268)},
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_send_signal": (424, 424)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "ptrace": (101, 117)},
    **{"process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438)},
    **{"chmod": (90, NO_CALL), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)},
    **{"chown": (92, NO_CALL), "fchown": (93, 55), "lchown": (94, NO_CALL), "fchownat": (260, 54)},
    **{"utime": (132, NO_CALL), "utimes": (235, NO_CALL), "futimesat": (261, NO_CALL), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)},
}

assert sys.platform != "win32", "jail.py: Windows has no means to restrict a program"
LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Restrict this process, run the program from stdin, and exit; an error in the program exits without the secret."""
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    secret, _, program = sys.stdin.buffer.read().partition(b"\n")
    report = os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(devnull, number)
    restrictions = {
        "limits": _limit(seconds, memory),
        "network": _block_network(),
        "files": _lock_files(),
        "processes": _filter_system_calls(),
    }
    if restrictions["processes"] == "filter":
        restrictions["network"] = "namespace" if restrictions["network"] == "namespace" else "filter"
    elif restrictions["network"] != "namespace":
        sys.modules["socket"] = sys.modules["_socket"] = None  # type: ignore[assignment]
        restrictions["network"] = "module"
    os.write(report, json.dumps(restrictions).encode() + b"\n")
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    os.write(report, secret)
    os._exit(0)  # without running anything that the program left behind


def _limit(seconds: int, memory: int) -> str:
    limits = {"CPU": seconds, "AS": memory, "FSIZE": 0, "NOFILE": MAX_OPEN_FILES, "CORE": 0, "NPROC": 0}
    for name, value in limits.items():
        if (kind := getattr(resource, f"RLIMIT_{name}", None)) is not None:
            resource.setrlimit(kind, (value, value))
    return "set"


def _block_network() -> str:
    """Enter a new network namespace without interfaces; return "namespace", or "none" if that is not allowed."""
    if not hasattr(_libc, "unshare"):
        return "none"
    return "none" if _libc.unshare(NEW_USER | NEW_NET) else "namespace"


def _lock_files() -> str:
    """Let Landlock allow only reads of Python's folders and the current one; "none" if Landlock is unavailable."""
    if not LINUX or _libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return "none"
    version = _libc.syscall(CREATE_RULESET, None, 0, ABI)
    if version < 1:
        return "none"
    rights = ALL_FILE_RIGHTS[min(version, len(ALL_FILE_RIGHTS) - 1)]
    rules = _libc.syscall(CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    for folder in {sys.prefix, sys.base_prefix, sys.exec_prefix, "/lib", "/lib64", "/usr/lib", "/usr/lib64", "."}:
        _allow_reading(rules, folder)
    return "none" if rules < 0 or _libc.syscall(RESTRICT_SELF, rules, 0) else "landlock"


def _allow_reading(rules: int, folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    _libc.syscall(ADD_RULE, rules, BENEATH, struct.pack("=Qi", READ_RIGHTS, descriptor), 0)
    os.close(descriptor)


def _filter_system_calls() -> str:
    """Make the system calls in `CALLS` fail with EPERM; return "filter", or "limits" where that is not supported."""
    supported = MACHINES.get(platform.machine())
    if not LINUX or supported is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return "limits"
    column, machine = supported
    load, equal, at_least, ret = 0x20, 0x15, 0x35, 0x06  # instructions of BPF
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    denied = [numbers[column] for numbers in CALLS.values() if numbers[column] != NO_CALL]
    code = [(load, 0, 0, 4), (equal, 1, 0, machine), (ret, 0, 0, kill), (load, 0, 0, 0)]
    code.append((at_least, len(denied) + 1, 0, 0x40000000))  # system calls of the x32 ABI, which have other numbers
    code += [(equal, len(denied) - at, 0, call) for at, call in enumerate(denied)]
    code += [(ret, 0, 0, allow), (ret, 0, 0, refuse)]
    body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(body)))
    return "limits" if _libc.prctl(SECCOMP, FILTER, program, 0, 0) else "filter"


if __name__ == "__main__":
    main()
