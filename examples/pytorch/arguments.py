"""What the command lines of these examples have in common."""
import argparse


def count(text):
    """A number of tokens: 4096, 64K, 1M."""
    unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper())
    try:
        number = int(text[:-1]) * unit if unit else int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of tokens, such as 4096, 64K or 1M")
    return number
