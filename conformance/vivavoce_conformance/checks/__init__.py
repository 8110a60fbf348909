"""All checks, in the order in which they run."""

from vivavoce_conformance.checks.cancelling import CANCELLING
from vivavoce_conformance.checks.errors import ERROR
from vivavoce_conformance.checks.formats import FORMATS
from vivavoce_conformance.checks.headers import HEADERS
from vivavoce_conformance.checks.models import MODELS, VOICES
from vivavoce_conformance.checks.requests import REQUESTS
from vivavoce_conformance.checks.security import SECURITY
from vivavoce_conformance.checks.sockets import SOCKETS
from vivavoce_conformance.checks.streaming import STREAMING

GROUPS = (REQUESTS, FORMATS, STREAMING, ERROR, HEADERS, MODELS, VOICES, CANCELLING, SECURITY, SOCKETS)
CHECKS = tuple(check for group in GROUPS for check in group.checks)
