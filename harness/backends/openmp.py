"""How compute threads wait for one another on a CPU: a few microseconds awake, then asleep, on every engine alike.

By default they spin for milliseconds. A server shares its cores with its own API process, the load generator and the
harness; whenever one of those runs, a thread spins for a partner that has no core. llama.cpp's server on 2 busy cores,
512 tokens in and 32 out: 17 s to 55 s spinning, 5 s to 13 s asleep, for a quarter of the processor time. On an idle
machine a short spin costs nothing (decode: 51 tokens/s by default, 48 with this, 30 without any spinning).
"""

WAIT_ASLEEP = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
