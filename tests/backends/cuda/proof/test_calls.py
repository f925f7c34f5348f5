"""Arguments copied, moved and taken apart; matrices unpacked piece by piece."""

from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.proof import calls
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.matmul import matmul_reference
from localdflash.kernels.cuda.moe import Routing
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.split_k import SplitWorkspace
from tests.support.random_planes import activations, random_planes

CPU = torch.device("cpu")


@pytest.mark.parametrize(("layout", "experts"), [("q4_k", 3), ("q6_k", 1), ("q4_1", 2)])
def test_a_matrix_in_pieces_is_the_matrix(layout: str, experts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    planes = random_planes(layout, 200, 512, experts=experts)
    monkeypatch.setattr(calls, "UNPACKED", 70 * 512)
    assert torch.equal(calls.unpacked(planes), planes.dense)


def test_copies_share_nothing_but_weights_and_scratch() -> None:
    planes, cache = random_planes("q4_k", 128, 256), Cache.empty(1, 32, 1, 64, torch.int8, CPU)
    arguments = {"planes": planes, "cache": cache, "routing": Routing(4, 2, CPU), "workspace": SplitWorkspace(CPU, []),
                 "scale": 0.5, "a": torch.zeros(3), "scratch": torch.ones(2)}  # fmt: skip
    copy = calls.copied(arguments)
    assert (copy["planes"], copy["workspace"], copy["scale"]) == (planes, arguments["workspace"], 0.5)
    assert copy["scratch"] is arguments["scratch"]
    for name, tensor in calls.tensors(copy).items():
        tensor.add_(1)
        assert not torch.equal(tensor, calls.tensors(arguments)[name]), name
    assert {"a", "cache.k", "cache.v_scale", "routing.count"} <= calls.tensors(copy).keys()
    assert not {"scratch", "planes.base"} & calls.tensors(copy).keys()


def test_a_matrix_that_the_gpu_has_no_room_for_is_multiplied_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    planes, devices, real = random_planes("q6_k", 200, 512), [], calls.unpacked
    a, sums = activations(planes)

    def unpacked(matrix: Planes) -> Tensor:
        devices.append(matrix is planes)
        if matrix is planes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(matrix)

    monkeypatch.setattr(calls, "unpacked", unpacked)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    arguments: dict[str, Any] = {"a": a, "sums": sums, "planes": planes, "out": torch.zeros(16, 200), "workspace": None}
    found = calls.run_reference(matmul_reference, arguments)
    assert devices == [True, False]
    assert "dense" not in vars(planes), "matrices in float32 do not fit beside each other"
    torch.testing.assert_close(found["out"], a[:, :512].float() @ planes.dense.T)
    assert not arguments["out"].any()
