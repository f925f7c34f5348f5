"""Windows, simulated: every module can be imported without the names that Python lacks there, and locks work.

A process imports the package, forgets it, removes these names, and imports it again.
"""

import subprocess
import sys

MODULES = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "winreg"}
NAMES = {
    "os": {
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "chroot", "fchmod", "fchown"),
        *("fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getpgrp", "getsid", "getuid"),
        *("kill", "killpg", "lchown", "memfd_create", "mkfifo", "mknod", "nice", "openpty", "pread", "pwrite"),
        *("sched_getaffinity", "sched_setaffinity", "sendfile", "set_blocking", "setpgid", "setsid", "setuid"),
        *("statvfs", "ttyname", "uname", "umask", "wait", "waitpid"),
    },
    "signal": {"SIGALRM", "SIGBREAK", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "alarm"},
    "socket": {"AF_UNIX", "SO_EXCLUSIVEADDRUSE", "SO_PEERCRED", "SO_REUSEADDR"},
    "mmap": {"MADV_DONTNEED", "MAP_ANONYMOUS", "MAP_PRIVATE"},
}

POOR = f"""
import ctypes, importlib, pkgutil, signal, sys, types

ROOMS = ("base", "engine", "models", "backends.llamacpp", "backends.cpu", "text", "loading", "code", "server", "chat",
         "lsp", "tui", "cli")
# Textual has a driver of its own there; the kernels are a library of C++ that lies among the modules.
LEFT_OUT = ("localdflash.tui.driver", "localdflash.backends.cpu._kernels")

def load():
    import localdflash
    for room in ROOMS:
        package = importlib.import_module(f"localdflash.{{room}}")
        for found in pkgutil.walk_packages(package.__path__, f"localdflash.{{room}}."):
            if not found.name.startswith(LEFT_OUT):
                importlib.import_module(found.name)

load()
count = len([name for name in sys.modules if name.startswith("localdflash")])
for name in [name for name in sys.modules if name.partition(".")[0] == "localdflash"]:
    del sys.modules[name]
for name in {sorted(MODULES)!r}:
    sys.modules[name] = None
for module, names in {NAMES!r}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
sys.modules["msvcrt"] = msvcrt = types.ModuleType("msvcrt")
ctypes.WinDLL = lambda *_, **__: kernel
signal.SIGBREAK = 21
sys.platform = "win32"
kernel = types.SimpleNamespace(LockFileEx=types.SimpleNamespace(), UnlockFileEx=types.SimpleNamespace())
load()
"""
LOCKS = """
msvcrt.get_osfhandle = lambda file: file + 1000
calls = []

def lock(handle, flags, reserved, low, high, place):
    calls.append(("lock", handle, flags, low, high, place._obj.offset))
    return answer

def unlock(handle, reserved, low, high, place):
    calls.append(("unlock", handle, low, high, place._obj.offset))

kernel.LockFileEx, kernel.UnlockFileEx = lock, unlock
ctypes.get_last_error = lambda: error
ctypes.FormatError = lambda code: f"error {code}"
from localdflash.base.system import file_lock
file_lock._kernel = kernel
answer = 1
assert file_lock.try_lock(7) is True
assert file_lock.try_lock(7, shared=True) is True
at = 1 << 30
assert calls == [
    ("unlock", 1007, 1, 0, at), ("lock", 1007, 3, 1, 0, at), ("unlock", 1007, 1, 0, at), ("lock", 1007, 1, 1, 0, at),
], calls
answer, error = 0, 33
assert file_lock.try_lock(7) is False
error = 5
try:
    file_lock.try_lock(7)
except OSError as raised:
    assert "error 5" in str(raised)
else:
    raise AssertionError
"""
REST = """
import os
from localdflash.base.files import paths
from localdflash.server import sockets
from localdflash.base.system import limits
from localdflash.base.system import owner
from localdflash.base.system import process
from localdflash.base.system import unix_socket
assert paths.transport() == "tcp"
assert paths.daemon_socket().name == "engine.tcp"
assert not unix_socket.is_listening(sockets.other_transport_path(paths.daemon_socket()))
assert owner.is_ours(os.stat(".")) and not owner.is_open_to_others(os.stat("."))
assert process.ending_signal(0xC0000005) == process.ending_signal(-1073741819) == "SIGSEGV"
assert process.ending_signal(3) == ""
limits.allow_descriptors(1)
os.environ["LOCALDFLASH_TRANSPORT"] = "unix"
try:
    paths.daemon_socket()
except Exception as error:
    print(type(error).__name__, error)
print(len([name for name in sys.modules if name.startswith("localdflash")]) == count)
"""


def test_modules_load_without_posix_and_choose_tcp() -> None:
    program = POOR + LOCKS + REST
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused = "UsageError LOCALDFLASH_TRANSPORT=unix: Windows has no Unix sockets; unset it, or choose tcp"
    assert done.stdout.splitlines() == [refused, "True"]
