"""A small parser for command-line options."""

import sys


class OptionError(Exception):
    """The command line does not fit the declared options."""


class Option:
    """One option such as ``--output FILE`` or ``-v``."""

    def __init__(self, *names, is_flag=False, convert=str, default=None, help=""):
        self.names = names
        self.is_flag = is_flag
        self.convert = convert
        self.default = False if is_flag else default
        self.help = help

    @property
    def dest(self):
        return max(self.names, key=len).lstrip("-").replace("-", "_")


def take_option(options, argument, remaining):
    """Find the option that ``argument`` names and return it with its value, which
    may be the first of the remaining arguments.
    """
    name, has_value, value = argument.partition("=")
    for option in options:
        if name in option.names:
            break
    else:
        raise OptionError(f"no such option: {name}")
    if option.is_flag:
        return option, True
    if not has_value:
        if not remaining:
            raise OptionError(f"option {name} needs a value")
        value = remaining.pop(0)
    return option, option.convert(value)


def parse_args(options, argv=None):
    """Split ``argv`` into a dictionary of option values and a list of positional
    arguments. Everything after ``--`` is positional.
    """
    remaining = list(sys.argv[1:] if argv is None else argv)
    values = {option.dest: option.default for option in options}
    positional = []
    while remaining:
        argument = remaining.pop(0)
        if argument == "--":
            positional.extend(remaining)
            break
        if argument.startswith("-") and argument != "-":
            option, value = take_option(options, argument, remaining)
            values[option.dest] = value
        else:
            positional.append(argument)
    return values, positional


def format_help(program, options):
    """Return a help text with one aligned line for each option."""
    lines = [f"usage: {program} [options] [arguments]", ""]
    labels = [", ".join(option.names) for option in options]
    width = max(len(label) for label in labels)
    for label, option in zip(labels, options):
        lines.append(f"  {label:<{width}}  {option.help}".rstrip())
    return "\n".join(lines)
