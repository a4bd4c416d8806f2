"""Imitates the client of the first prototype: submits a job by one GET request.

    client.py URL STRATEGY N_WORKER N_PS IMG NAME

URL is the address of a master, such as http://10.1.2.3:31898. The program accepts only status 200 as success. It then
prints the body of the answer and exits with 0.
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
