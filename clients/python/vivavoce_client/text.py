"""`vivavoce text`: shows what a server would say of a text, and speaks nothing."""

import argparse
import json
import sys

from vivavoce_client.outputs import STANDARD
from vivavoce_client.say import add_server_arguments, add_text_arguments, connect, given_options

EXAMPLES = """\
examples:
  vivavoce text "It costs $5.50."            It costs five dollars and fifty cents.
  vivavoce text "It costs $5.50." --normalize false
  vivavoce text --json < page.md             the server's answer, with each part and the stages that ran
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add_server_arguments(parser)
    parser.add_argument("text", nargs="?", default=STANDARD, help="text to read; - reads standard input [-]")
    add_text_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the server's whole answer")


def run(args: argparse.Namespace) -> int:
    """Prints the text that would be said, and the warnings on standard error."""
    text = sys.stdin.read() if args.text == STANDARD else args.text
    with connect(args) as client:
        spoken = client.spoken_text(text, **given_options(args, "language", "normalize"))
    if args.json:
        print(json.dumps(spoken.answer, ensure_ascii=False, indent=2))
    else:
        print(spoken)
    for warning in spoken.warnings:
        print(f"vivavoce: {warning}", file=sys.stderr)
    return 0
