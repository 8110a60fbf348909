"""`python -m vivavoce_eval KIND`: the command for an environment without the client's command line."""

import argparse
import sys

from vivavoce_eval import cli

parser = argparse.ArgumentParser(prog="vivavoce eval", description=cli.__doc__)
cli.add_arguments(parser)
sys.exit(cli.run(parser.parse_args()))
