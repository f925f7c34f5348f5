"""`localdflash doctor`: check this machine and this installation; each finding comes with its remedy."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from localdflash.cli.doctor import gpu_check, graphics, installation, resources, self_test, surroundings
from localdflash.cli.doctor.check import Check, Probe
from localdflash.cli.output import print_json
from localdflash.text.sanitize import printable

REINSTALL = "run `pip install --force-reinstall localdflash`"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--check-gpu", metavar="SPEC", help="Check the CUDA engine on this GPU with a pair, and nothing else.")
def command(as_json: bool, check_gpu: str | None) -> int:
    """Check Python, libraries, machine, terminal, editors and the pairs. Exit code 1 if something failed."""
    checks = []
    for check in gpu_check.again(check_gpu) if check_gpu else _checks():
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json([asdict(check) for check in checks])
    return 1 if any(check.status == "failed" for check in checks) else 0


def _probes() -> tuple[Probe, ...]:
    """All checks, the environment first, the self-tests last."""
    return (
        Probe("python", installation.python, REINSTALL),
        Probe("torch", installation.torch, f"run `{installation.CPU_TORCH}`", required=False),
        Probe("cuda", installation.cuda, "update the NVIDIA driver, or use --backend llama.cpp", required=False),
        Probe("GPUs", installation.cuda_gpus, "update the NVIDIA driver", required=False),
        Probe("gpu check", gpu_check.found, "see `localdflash doctor --check-gpu`", required=False),
        Probe("cpu engine", installation.cpu_engine, "use --backend llama.cpp", required=False),
        Probe("llama-cpp-python", installation.llama, "run `pip install --force-reinstall llama-cpp-python`"),
        Probe("llama.cpp on GPUs", graphics.llama_gpu, "use --device cpu", required=False),
        Probe("jinja2", installation.jinja2, "run `pip install 'jinja2>=3.1.6'`"),
        Probe("offline mode", installation.offline, "unset HF_HUB_OFFLINE", required=False),
        Probe("processor", resources.processor, REINSTALL, required=False),
        Probe("memory", resources.memory, REINSTALL, required=False),
        Probe("bandwidth", resources.bandwidth, "close other programs and try again", required=False),
        Probe("models", resources.models, "set LOCALDFLASH_HOME to a folder of yours", required=False),
        Probe("inotify", resources.watches, "", required=False),
        Probe("socket", surroundings.runtime_socket, "set LOCALDFLASH_HOME to a short path of yours"),
        Probe("daemon", surroundings.daemon, "run `localdflash serve`", required=False),
        Probe("terminal", surroundings.terminal, "", required=False),
        Probe("editors", surroundings.editors, "", required=False),
        Probe("embedded pair", self_test.embedded_pair, REINSTALL),
        Probe("completion pair", self_test.completion_pair, "see `localdflash models list`", required=False),
        Probe("chat pair", self_test.chat_pair, "see `localdflash models list`", required=False),
    )


def _checks() -> Iterator[Check]:
    for probe in _probes():
        yield probe.check()


def _print(check: Check) -> None:
    """Print a finding as soon as it is known, with the remedy below it."""
    print(f"{check.status:8} {check.name:17} {printable(check.detail)}", flush=True)
    if check.remedy:
        print(f"{'':26} {printable(check.remedy)}")
