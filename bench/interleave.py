#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trace in the compact form whose sessions stand one after the other, with sessions side by side.

    interleave.py SESSIONS < TRACE > OUT

SESSIONS of them run at a time; when one ends the next one begins, as in `kvcellar simulate --sessions`.
`replay` with one client and `simulate --sessions 0` play lines in their order: so both see the same.
"""
import heapq
import json
import sys


def interleave(lines, many):
    """The lines in the order of their times."""
    sessions = {}
    for line in lines:
        session, seconds = json.loads(line)[:2]
        sessions.setdefault(session, []).append((seconds, line))
    waiting = list(sessions.values())
    running = [(waiting[i][0][0], i, 0, 0) for i in range(min(many, len(waiting)))]
    heapq.heapify(running)
    begun = len(running)
    while running:
        now, number, at, base = heapq.heappop(running)
        requests = waiting[number]
        yield requests[at][1]
        if at + 1 < len(requests):
            heapq.heappush(running, (base + requests[at + 1][0], number, at + 1, base))
        elif begun < len(waiting):
            heapq.heappush(running, (now + waiting[begun][0][0], begun, 0, now))
            begun += 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or int(sys.argv[1]) == 0:
        sys.exit(__doc__)
    sys.stdout.writelines(interleave([line for line in sys.stdin if line.strip()],
                                     int(sys.argv[1])))
