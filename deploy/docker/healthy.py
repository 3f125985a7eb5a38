"""Exit 0 when the URL answers 200 within two seconds; the images hold no curl."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=2) as answer:
    sys.exit(answer.status != 200)
