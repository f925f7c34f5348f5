"""Runs check.cpp on emulated processors: AVX-VNNI and AVX512-VNNI under Bochs.

`python -P tests/kernels/cpu/emulated.py [instruction set ...]` (`make test-cpus`) runs the named sets, or all:
Linux starts in an emulated machine with init.cpp as its only process, which runs the check and turns the machine off.
Exit codes: 0 all sets agree, 1 a difference, or the emulator is not available (one line gives the reason).

Nothing is installed: Bochs is compiled from Debian's source, its firmware, Linux and a boot loader are unpacked from
Debian's packages, all into `--folder`, once; that takes minutes. Needs a C++ compiler, make, and Debian or similar.
"""

import argparse
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from localdflash.lab.scripts.editors.unpack_packages import ARCHIVE, CannotFetch, unpack, write_launcher

HERE = Path(__file__).parent
CPU = HERE.parents[2] / "kernels" / "cpu"
FOLDER = HERE.parents[2] / ".venv" / "cpus"
MODELS = {"avxvnni": "arrow_lake", "avx512vnni": "sapphire_rapids"}
# Linux 6.12, trixie's, hangs on the emulated Sapphire Rapids while it patches itself; 7.2 does not.
PACKAGES = {
    "sid": ["linux-image-cloud-amd64"],
    "trixie": ["bochsbios", "vgabios", "isolinux", "syslinux-common", "xorriso"],
}
SOURCE = f"{ARCHIVE}/pool/main/b/bochs/bochs_3.0+dfsg.orig.tar.xz"
SHA256 = "78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b"
OPTIONS = [
    *("--enable-x86-64", "--enable-cpu-level=6", "--enable-avx", "--enable-evex", "--enable-pci"),
    *(
        "--enable-cdrom",
        "--enable-fast-function-calls",
        "--enable-repeat-speedups",
        "--disable-docbook",
        "--with-nogui",
    ),
]
SECONDS = 1800  # limit of one emulated machine, or of one compilation step

BOCHSRC = """\
cpu: model={model}, ips=50000000, reset_on_triple_fault=0
memory: guest=256, host=256
romimage: file={root}/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file={root}/usr/share/vgabios/vgabios.bin
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path={disc}, status=inserted
boot: cdrom
display_library: nogui
com1: enabled=1, mode=file, dev={serial}
log: {log}
panic: action=fatal
clock: sync=none
"""
# no5lvl: turning ACPI on, which turns the machine off in the end, fails in Bochs with five levels of pages. spectre_v2:
# with fewer places for Linux to patch in itself, which Bochs does not always notice.
ISOLINUX = """\
DEFAULT check
LABEL check
KERNEL vmlinuz
APPEND console=ttyS0 loglevel=1 panic=-1 spectre_v2=retpoline no5lvl initrd=initrd rdinit=/init -- {sets}
"""


def fetch(folder: Path) -> None:
    """Fetch the emulator and the system that it starts; raise CannotFetch on failure."""
    if (folder / "ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for suite, packages in PACKAGES.items():
        unpack(suite, packages, folder / suite)
    write_launcher(folder / "xorriso", folder / "trixie/root", "usr/bin/xorriso", {})
    with urlopen(SOURCE, timeout=60) as answer:
        archive = answer.read()
    if hashlib.sha256(archive).hexdigest() != SHA256:
        raise CannotFetch(f"{SOURCE} is not the file that was tested")
    (folder / "bochs.tar.xz").write_bytes(archive)
    with tarfile.open(folder / "bochs.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    source = next(folder.glob("bochs-*"))
    run("./configure", *OPTIONS, folder=source)
    run("make", f"-j{os.cpu_count() or 1}", folder=source)
    shutil.copy(source / "bochs", folder / "bochs")
    shutil.rmtree(source)
    (folder / "ready").touch()


def programs(folder: Path) -> None:
    """Link `check` and `init` statically."""
    sources = runpy.run_path(str(CPU / "sources.py"))
    sources["compile_library"](folder / "libldf.so", ("c++",))
    objects = map(str, (folder / "libldf.objects").glob("*.o"))
    common = ("c++", "-std=c++17", "-O2", "-ffp-contract=off", "-static")
    run(*common, "-I", str(CPU), str(HERE / "check.cpp"), *objects, "-pthread", "-o", "check", folder=folder)
    run(*common, str(HERE / "init.cpp"), "-o", "init", folder=folder)


def emulate(tools: Path, built: Path, model: str, sets: list[str]) -> str:
    """Return an emulated machine's console after the check of some instruction sets; CannotFetch without one."""
    root, machine = tools / "trixie" / "root", built / model
    disc = machine / "disc"
    disc.mkdir(parents=True)
    kernels = (tools / "sid" / "root").rglob("vmlinuz*")
    shutil.copy(max(kernels, key=lambda place: place.stat().st_size), disc / "vmlinuz")
    for name in ("ISOLINUX/isolinux.bin", "syslinux/modules/bios/ldlinux.c32"):
        shutil.copy(root / "usr/lib" / name, disc)
    (disc / "isolinux.cfg").write_text(ISOLINUX.format(sets=" ".join(sets)))
    (disc / "initrd").write_bytes(initramfs({"init": built / "init", "check": built / "check"}))
    boot = ("-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table")
    run(str(tools / "xorriso"), *("-as", "mkisofs", "-quiet", "-o", "disc.iso", *boot), str(disc), folder=machine)
    serial, log = machine / "serial", machine / "log"
    (machine / "bochsrc").write_text(
        BOCHSRC.format(model=model, root=root, disc=machine / "disc.iso", serial=serial, log=log)
    )
    bochs = [str(tools / "bochs"), "-q", "-f", "bochsrc"]
    # Its exit status has no meaning: a machine that turns itself off counts as a panic.
    done = subprocess.run(
        bochs, cwd=machine, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=SECONDS, check=False
    )
    if not serial.exists():
        raise CannotFetch(next(filter(re.compile("PANIC").search, done.stdout.splitlines()), "Bochs did not start"))
    return serial.read_text(errors="replace")


def initramfs(programs: dict[str, Path]) -> bytes:
    """Return a file system for Linux to start from, in cpio's format: a console and some programs."""

    def entry(number: int, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        return b"".join(part + b"\0" * (-len(part) % 4) for part in (head, content))

    parts = [entry(1, "dev", 0o040755), entry(2, "dev/console", 0o020600, device=(5, 1))]
    parts += [entry(3 + i, name, 0o100755, place.read_bytes()) for i, (name, place) in enumerate(programs.items())]
    return b"".join(parts) + entry(0, "TRAILER!!!", 0)


def run(*command: str, folder: Path) -> None:
    """Run a command; raise CannotFetch with its last line of output on failure."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise CannotFetch(f"{command[0]} failed: {output[-1] if output else f'exit code {done.returncode}'}")


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", choices=[*MODELS, []], metavar="instruction set", default=[])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    sets = arguments.sets or list(MODELS)
    machines: dict[str, list[str]] = {}
    for name in sets:
        machines.setdefault(MODELS[name], []).append(name)
    tools = arguments.folder.absolute()
    try:
        fetch(tools)
        with TemporaryDirectory() as temporary, ThreadPoolExecutor() as pool:
            built = Path(temporary)
            programs(built)
            said = "\n".join(pool.map(lambda machine: emulate(tools, built, *machine), machines.items()))
    except (CannotFetch, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    results = dict(re.findall(r"^(\w+): (.+?)\s*$", said, re.MULTILINE))
    for name in sets:
        sys.stdout.write(f"{name}: {results.get(name, 'the machine did not say')}\n")
    return 0 if all(results.get(name) == "ok" for name in sets) else 1


if __name__ == "__main__":
    sys.exit(main())
