"""Run on several ranks: what Ranks tells there."""

import json
import sys

import torch.distributed as dist
from job_end import leave

from lamina.ranks import Ranks


def main() -> None:
    dist.init_process_group("gloo")
    ranks = Ranks()
    odd = dist.new_group([1, 2])
    found = {
        "nonces": [each.decode() for each in ranks.gather(ranks.nonce().encode())],
        "messages": [each.decode() for each in ranks.gather(b"x" * ranks.rank)],
    }
    if ranks.rank in (1, 2):
        within = Ranks(odd)
        found["odd"] = [within.rank, within.count, *(each.decode() for each in within.gather(str(ranks.rank).encode()))]
    if ranks.rank == 1:
        with open(sys.argv[1], "w") as report:
            report.write(json.dumps({"event": "ranks", **found}) + "\n")
    leave()


if __name__ == "__main__":
    main()
