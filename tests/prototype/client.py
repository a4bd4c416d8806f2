"""Stands in for the first prototype's client: submits a job with the request that wire.md describes.

    client.py URL STRATEGY N_WORKER N_PS IMG NAME

URL is the master's, such as http://10.1.2.3:31898. It treats only status 200 as success: it prints the body and exits with 0.
"""

import http.client
import sys
from urllib.parse import urlencode, urlsplit

NAMES = ("strategy", "n_worker", "n_ps", "img", "name")
TIMEOUT_SECONDS = 30


def main():
    if len(sys.argv) != 2 + len(NAMES):
        sys.exit(__doc__)
    url, *values = sys.argv[1:]
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    connection.request("GET", "/create?" + urlencode(dict(zip(NAMES, values))))
    answer = connection.getresponse()
    body = answer.read().decode(errors="replace")
    if answer.status != 200:
        sys.exit(f"{answer.status} {body}")
    print(body)


if __name__ == "__main__":
    main()
