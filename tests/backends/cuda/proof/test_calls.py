"""Arguments copied, moved and taken apart."""

import torch

from localdflash.backends.cuda.proof import calls
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.moe import Routing
from localdflash.kernels.cuda.split_k import SplitWorkspace
from tests.support.random_planes import random_planes

CPU = torch.device("cpu")


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
