"""Check that data from outside has the expected form."""

import re

EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


class ValidationError(ValueError):
    """One or more fields have invalid values."""

    def __init__(self, errors):
        self.errors = errors
        details = ", ".join(f"{name}: {message}" for name, message in errors.items())
        super().__init__(details)


def length(minimum=0, maximum=1000):
    """Return a validator for the length of strings and lists."""

    def validate(value):
        if not minimum <= len(value) <= maximum:
            raise ValueError(f"must have {minimum} to {maximum} items")
        return value

    return validate


def one_of(*choices):
    """Return a validator that accepts only the given choices."""
    allowed = ", ".join(repr(choice) for choice in choices)

    def validate(value):
        if value not in choices:
            raise ValueError(f"must be one of {allowed}")
        return value

    return validate


def email(value):
    """Accept a string that looks like an email address and normalize its domain."""
    if not EMAIL.fullmatch(value):
        raise ValueError("is not an email address")
    local, _, domain = value.rpartition("@")
    return f"{local}@{domain.lower()}"


class Schema:
    """A set of named fields, each with a list of validators."""

    def __init__(self, **fields):
        self.fields = fields

    def load(self, data, partial=False):
        """Validate a dictionary and return the cleaned values. All errors are
        collected before ``ValidationError`` is raised.
        """
        cleaned = {}
        errors = {}
        for name, validators in self.fields.items():
            if name not in data:
                if not partial:
                    errors[name] = "is required"
                continue
            value = data[name]
            try:
                for validate in validators:
                    value = validate(value)
            except (TypeError, ValueError) as error:
                errors[name] = str(error)
            else:
                cleaned[name] = value
        if errors:
            raise ValidationError(errors)
        return cleaned
