"""Imitates the master of the first prototype: configures agents and starts them. It sends no other requests.

    master.py [--ps N] AGENT...

AGENT is an agent's address; the default port is 7896. The first N agents are parameter servers, the others are workers.
Without parameter servers the cluster has no `ps`. The cluster never has a chief. The master sends every agent its
config. When all agents have answered, the master sends them the request to run, without generation, token or query.
SET_ID is always 0. The master exits with 0 if every answer is 200, and with 1 after the first other answer.
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
    """Returns the host and the port of an agent."""
    host, _, port = agent.partition(":")
    return host, int(port or AGENT_PORT)


def own_address(agent):
    """Returns this machine's address on the route to an agent. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(split(agent))
        return way.getsockname()[0]


def configs(servers, workers):
    """Yields each agent with its config. The keys are in the prototype's order."""
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
    """Sends a request to an agent. Ends the program unless the answer is 200."""
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
