"""python -m vivavoce_server: the same as `vivavoce serve`."""

import sys

from vivavoce_client.arguments import Parser

from vivavoce_server import cli


def main() -> int:
    parser = Parser(prog="python -m vivavoce_server", description=cli.__doc__)
    cli.add_arguments(parser)
    return cli.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
