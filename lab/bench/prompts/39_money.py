"""Amounts of money without rounding errors."""

from decimal import ROUND_HALF_EVEN, Decimal

DIGITS = {"EUR": 2, "USD": 2, "GBP": 2, "JPY": 0}


class CurrencyMismatch(TypeError):
    """Two amounts have different currencies."""


class Money:
    """An amount in a currency, stored as a decimal number."""

    __slots__ = ("amount", "currency")

    def __init__(self, amount, currency="EUR"):
        """Round the amount to the smallest unit of the currency."""
        if currency not in DIGITS:
            raise ValueError(f"unknown currency: {currency!r}")
        unit = Decimal(1).scaleb(-DIGITS[currency])
        self.amount = Decimal(str(amount)).quantize(unit, ROUND_HALF_EVEN)
        self.currency = currency

    def _check(self, other):
        """Raise an error unless the other amount has the same currency."""
        if not isinstance(other, Money):
            raise TypeError(f"expected Money, got {type(other).__name__}")
        if self.currency != other.currency:
            raise CurrencyMismatch(f"{self.currency} and {other.currency}")

    def __add__(self, other):
        self._check(other)
        return Money(self.amount + other.amount, self.currency)

    def __mul__(self, factor):
        return Money(self.amount * Decimal(str(factor)), self.currency)

    def allocate(self, ratios):
        """Divide the amount in the given ratios without losing a cent. The first
        shares get what remains after rounding down.
        """
        total = sum(ratios)
        unit = Decimal(1).scaleb(-DIGITS[self.currency])
        units = int(self.amount / unit)
        shares = [units * ratio // total for ratio in ratios]
        remainder = units - sum(shares)
        for index in range(remainder):
            shares[index] += 1
        return [Money(share * unit, self.currency) for share in shares]

    def __str__(self):
        return f"{self.amount:,} {self.currency}"


def convert(money, currency, rates):
    """Exchange an amount into another currency. The rates say how many units of each
    currency one euro is worth.
    """
    if money.currency == currency:
        return money
    for code in (money.currency, currency):
        if code not in rates:
            raise KeyError(f"no exchange rate for {code}")
    euros = money.amount / Decimal(str(rates[money.currency]))
    return Money(euros * Decimal(str(rates[currency])), currency)
