import os

print("role", os.environ.get("MUSTER_ROLE"), "index", os.environ.get("MUSTER_INDEX"), "rank", os.environ.get("RANK"))
print("TF_CONFIG", os.environ.get("TF_CONFIG"))
