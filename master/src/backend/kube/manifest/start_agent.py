# Unpacks the agent and becomes the agent. In a pod, `python3 -I -S -c` runs this program with the agent's arguments.
import os, sys, zlib

AGENT = "/muster/bin/agent"
try:
    with open("/muster/agent/agent.gz", "rb") as packed:
        program = zlib.decompress(packed.read(), 31)
    with open(AGENT, "wb") as file:
        file.write(program)
    os.chmod(AGENT, 0o755)
    os.execv(AGENT, [AGENT] + sys.argv[1:])
except Exception as error:
    why = "cannot start the agent: %s" % error
    with open("/dev/termination-log", "w") as log:
        log.write(why)
    sys.exit(why)
