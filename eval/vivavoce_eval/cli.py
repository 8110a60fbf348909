"""The command `vivavoce eval KIND`."""

import argparse

from vivavoce_eval import align, fit, numerics, quality, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    of_quality = kinds.add_parser(
        "quality", help="judge a voice: word errors, DNSMOS, speakers, pitch, silence, clicks"
    )
    quality.add_arguments(of_quality)
    of_quality.set_defaults(evaluate=quality.run)
    of_text = kinds.add_parser("text", help="judge how written text is read: words that are not said as expected")
    text.add_arguments(of_text)
    of_text.set_defaults(evaluate=text.run)
    of_numerics = kinds.add_parser(
        "numerics", help="measure the effect of rounding on a voice: codes, word errors, DNSMOS"
    )
    numerics.add_arguments(of_numerics)
    of_numerics.set_defaults(evaluate=numerics.run)
    of_align = kinds.add_parser(
        "align", help="find the attention head of a checkpoint that tells when words are spoken"
    )
    align.add_arguments(of_align)
    of_align.set_defaults(evaluate=align.run)
    of_fit = kinds.add_parser(
        "fit", help="measure how well a checkpoint tells transcripts of recordings from other texts"
    )
    fit.add_arguments(of_fit)
    of_fit.set_defaults(evaluate=fit.run)


def run(args: argparse.Namespace) -> int:
    status: int = args.evaluate(args)
    return status
