"""Where the playground's files lie: a page that a browser takes as it is, without a build step."""

from pathlib import Path

FOLDER = Path(__file__).parent
INDEX = "index.html"
