"""Statistics that know nothing of agents: intervals, tests of two samples, tests that may stop early."""
