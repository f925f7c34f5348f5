"""Every case."""

from tests.kernels.cuda.aot import attention_cases, linear_cases, moe_cases, token_cases, traps

CASES = (*linear_cases.CASES, *attention_cases.CASES, *token_cases.CASES, *moe_cases.CASES, *traps.CASES)
