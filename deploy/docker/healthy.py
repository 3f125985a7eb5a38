"""Exit 0 when the URL answers 200 within two seconds; the images hold no curl."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=2) as answer:  # noqa: S310  the address is compose.yaml's own
    sys.exit(answer.status != 200)
