"""Evaluate arithmetic expressions without ``eval``."""

import operator

OPERATORS = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "/": (2, operator.truediv),
    "^": (3, operator.pow),
}


def split_tokens(expression):
    """Split an expression into numbers, operators and parentheses."""
    tokens = []
    number = ""
    for character in expression + " ":
        if character.isdigit() or character == ".":
            number += character
            continue
        if number:
            tokens.append(float(number))
            number = ""
        if character in OPERATORS or character in "()":
            tokens.append(character)
        elif not character.isspace():
            raise ValueError(f"unexpected character {character!r}")
    return tokens


def pop_until(stack, precedence):
    """Remove and return the operators on top that bind at least as tightly."""
    popped = []
    while stack and stack[-1] != "(":
        if OPERATORS[stack[-1]][0] < precedence:
            break
        popped.append(stack.pop())
    return popped


def to_postfix(tokens):
    """Reorder tokens so that each operator follows its operands."""
    output = []
    stack = []
    for token in tokens:
        if isinstance(token, float):
            output.append(token)
        elif token == "(":
            stack.append(token)
        elif token == ")":
            output += pop_until(stack, 0)
            if not stack:
                raise ValueError("unbalanced parentheses")
            stack.pop()
        else:
            output += pop_until(stack, OPERATORS[token][0])
            stack.append(token)
    return output + stack[::-1]


def evaluate(expression):
    """Return the value of an arithmetic expression."""
    stack = []
    for token in to_postfix(split_tokens(expression)):
        if isinstance(token, float):
            stack.append(token)
            continue
        if token == "(" or len(stack) < 2:
            raise ValueError(f"malformed: {expression!r}")
        right = stack.pop()
        left = stack.pop()
        stack.append(OPERATORS[token][1](left, right))
    return stack.pop()
