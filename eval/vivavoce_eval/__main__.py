"""`python -m vivavoce_eval KIND`: the command, where only this package is at hand."""

import argparse
import sys

from vivavoce_eval import cli

parser = argparse.ArgumentParser(prog="vivavoce eval", description=cli.__doc__)
cli.add_arguments(parser)
sys.exit(cli.run(parser.parse_args()))
