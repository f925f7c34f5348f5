"""`localdflash doctor`: check this machine and this installation; each finding comes with its remedy."""

from dataclasses import asdict

import click

from localdflash.cli.doctor import gpu_check, graphics, installation, resources, self_test
from localdflash.cli.doctor.check import DoctorCheck
from localdflash.cli.output import print_json
from localdflash.text.sanitize import printable

LIST = "see `localdflash models list`"
REINSTALL = "run `pip install --force-reinstall localdflash`"
REINSTALL_LLAMA = "run `pip install --force-reinstall llama-cpp-python`"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--check-gpu", metavar="SPEC", help="Only check the CUDA engine on this GPU, with the pair SPEC.")
@click.option("--full", is_flag=True, help="Also check torch, the completion pair and the chat pair.")
def command(as_json: bool, check_gpu: str | None, full: bool) -> int:
    """Check Python, libraries, hardware, terminal, editors and pairs. The exit code is 1 if a check fails."""
    checks = (check.check() for check in _checks() if full or not check.slow)
    results = gpu_check.check_pair(check_gpu) if check_gpu else checks
    findings = []
    for finding in results:
        findings.append(finding)
        if not as_json:
            print(f"{finding.status:8} {finding.name:17} {printable(finding.detail)}", flush=True)
            if finding.remedy:
                print(f"{'':26} {printable(finding.remedy)}")
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif not (full or check_gpu):
        print(f"{'':26} `localdflash doctor --full` also checks torch, the completion pair and the chat pair")
    return 1 if any(finding.status == "failed" for finding in findings) else 0


def _checks() -> tuple[DoctorCheck, ...]:
    return (
        DoctorCheck("python", installation.python, REINSTALL),
        DoctorCheck("settings", installation.settings, "correct it; `localdflash config show` prints all settings"),
        DoctorCheck("torch", installation.torch, f"run `{installation.CPU_TORCH}`", required=False, slow=True),
        DoctorCheck("cuda", installation.cuda, "update the NVIDIA driver, or use --backend llama.cpp", required=False),
        DoctorCheck("GPUs", installation.cuda_gpus, "update the NVIDIA driver", required=False),
        DoctorCheck("gpu check", gpu_check.report_verdicts, "see `localdflash doctor --check-gpu`", required=False),
        DoctorCheck("cpu engine", installation.cpu_engine, "use --backend llama.cpp", required=False),
        DoctorCheck("llama-cpp-python", installation.llama, REINSTALL_LLAMA, required=False),
        DoctorCheck("llama.cpp on GPUs", graphics.llama_gpu, "use --device cpu", required=False),
        DoctorCheck("offline mode", installation.offline, "", required=False),
        DoctorCheck("processor", resources.processor, REINSTALL, required=False),
        DoctorCheck("memory", resources.memory, REINSTALL, required=False),
        DoctorCheck("bandwidth", resources.bandwidth, "close other programs and try again", required=False),
        DoctorCheck("models", resources.models, "set LOCALDFLASH_HOME to a folder of yours", required=False),
        DoctorCheck("inotify", resources.watches, "", required=False),
        DoctorCheck("socket", resources.runtime_socket, "set LOCALDFLASH_HOME to a short path of yours"),
        DoctorCheck("daemon", resources.daemon, "", required=False),
        DoctorCheck("terminal", resources.terminal, "", required=False),
        DoctorCheck("editors", resources.editors, "", required=False),
        DoctorCheck("embedded pair", self_test.embedded_pair, REINSTALL),
        DoctorCheck("completion pair", self_test.completion_pair, LIST, required=False, slow=True),
        DoctorCheck("chat pair", self_test.chat_pair, LIST, required=False, slow=True),
    )
