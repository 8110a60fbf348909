"""Files of the playground, a web page that needs no build step."""

from pathlib import Path

FOLDER = Path(__file__).parent
INDEX = "index.html"
