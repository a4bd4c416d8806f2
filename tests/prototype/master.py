"""Stands in for the first prototype's master: tells agents what wire.md says that it told them, and nothing else.

    master.py [--ps N] AGENT...

AGENT is the address of one agent, with a port where that is not 7896. The first N are parameter servers, the others
workers; a cluster without parameter servers has no `ps` at all, and none has a chief. Every agent is sent its config,
and then, when all have answered, the start, with neither generation, token nor query. What it says of SET_ID is the one
number that wire.md knows, 0. It exits with 0 when every answer was 200, and with 1 at the first that was not.
"""

import argparse
import http.client
import json
import socket
import sys

AGENT_PORT = 7896
TENSORFLOW_PORT = 1234
TIMEOUT_SECONDS = 30


def split(agent):
    """Host and port of an agent."""
    host, _, port = agent.partition(":")
    return host, int(port or AGENT_PORT)


def own_address(agent):
    """The address of this machine on the way to an agent; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(split(agent))
        return way.getsockname()[0]


def configs(servers, workers):
    """What each agent is told, in the order of wire.md's keys."""
    addresses = {"worker": workers, "ps": servers}
    cluster = {
        role: [f"{split(agent)[0]}:{TENSORFLOW_PORT}" for agent in agents]
        for role, agents in addresses.items() if agents
    }
    for role, agents in addresses.items():
        for index, agent in enumerate(agents):
            tf_config = {"cluster": cluster, "task": {"type": role, "index": index}}
            yield agent, {
                "MASTER": own_address(agent), "SET_ID": 0, "NUM_WORKERS": len(workers), "TF_CONFIG": tf_config,
            }


def ask(agent, method, path, body=None):
    """Asks an agent; ends the program if it does not agree."""
    connection = http.client.HTTPConnection(*split(agent), timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except OSError as error:
        sys.exit(f"{method} {path} of {agent}: {error}")
    finally:
        connection.close()
    if answer.status != 200:
        sys.exit(f"{method} {path} of {agent}: {answer.status} {text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps", type=int, default=0)
    parser.add_argument("agents", nargs="+", metavar="AGENT")
    args = parser.parse_args()
    for agent, config in configs(args.agents[:args.ps], args.agents[args.ps:]):
        ask(agent, "POST", "/config", json.dumps(config, separators=(",", ":")))
    for agent in args.agents:
        ask(agent, "GET", "/run")


if __name__ == "__main__":
    main()
