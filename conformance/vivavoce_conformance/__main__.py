"""`python -m vivavoce_conformance URL`: the command for an environment without the client's command line."""

import argparse
import sys

from vivavoce_conformance import cli

parser = argparse.ArgumentParser(prog="vivavoce conformance", description=cli.__doc__)
cli.add_arguments(parser)
sys.exit(cli.run(parser.parse_args()))
