"""python -m vivavoce_server: the same as `vivavoce serve`."""

import sys

from vivavoce_client.__main__ import needs
from vivavoce_client.arguments import USAGE_ERROR, Parser


def main() -> int:
    try:
        from vivavoce_server import cli
    except ModuleNotFoundError as error:
        print(f"vivavoce: {needs('serve', error)}", file=sys.stderr)
        return USAGE_ERROR
    parser = Parser(prog="python -m vivavoce_server", description=cli.__doc__)
    cli.add_arguments(parser)
    try:
        return cli.run(parser.parse_args())
    except KeyboardInterrupt:  # before the models load, or again while the server ends
        return cli.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
