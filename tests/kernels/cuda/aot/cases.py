"""Every case."""

from tests.kernels.cuda.aot import attention_cases
from tests.kernels.cuda.aot import linear_cases
from tests.kernels.cuda.aot import moe_cases
from tests.kernels.cuda.aot import token_cases
from tests.kernels.cuda.aot import traps

CASES = (*linear_cases.CASES, *attention_cases.CASES, *token_cases.CASES, *moe_cases.CASES, *traps.CASES)
