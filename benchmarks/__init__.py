"""What a run of Agentest costs, measured against its critical path and against bare clients.

`python -m benchmarks` runs everything, without a key and without the network, and writes the tables of
benchmarks/README.md.
"""
