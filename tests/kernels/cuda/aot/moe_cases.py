"""The mixture of experts, in the shapes of Qwen3-30B-A3B."""

from localdflash.kernels.cuda.moe import Routing, combine, experts_down, experts_gate_up, route, router_plan
from localdflash.kernels.cuda.split_k import SplitWorkspace
from tests.kernels.cuda.aot.case import META, Q4_K, Case, floats, halves, ints, norm, planes, planes_tile, rows

H, F, EXPERTS, CHOSEN = 2048, 768, 128, 8


def _routing() -> Routing:
    return Routing(EXPERTS, CHOSEN, META)


def _route() -> None:
    workspace = SplitWorkspace(META, [router_plan(EXPERTS, H)])
    route(rows(H)[0], floats(EXPERTS, H), norm(H), ints(8)[2:3], _routing(), workspace, normalise=True)


def _gate_up() -> None:
    routing = _routing()
    out, sums = halves(routing.slots, 16, F), floats(routing.slots, F // 32, 16)
    experts_gate_up(*rows(H), planes(2 * F, H, Q4_K, EXPERTS), norm(H), routing, out, sums)


def _down() -> None:
    routing = _routing()
    a, sums = halves(routing.slots, 16, F), floats(routing.slots, F // 32, 16)
    experts_down(a, sums, planes(H, F, Q4_K, EXPERTS), routing, floats(16, CHOSEN, H))


def _combine() -> None:
    into = (*rows(H), floats(H // 128, 16))
    combine(floats(16, CHOSEN, H), _routing(), floats(16, H), floats(H), norm(H), *into)


CASES = (
    Case("moe route", _route),
    Case("moe gate_up", _gate_up, planes_tile, (90, 120)),
    Case("moe down", _down, planes_tile, (90, 120)),
    Case("moe combine", _combine),
)
