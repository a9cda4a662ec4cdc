"""Statistics without knowledge of agents: intervals, tests of two samples, tests that may stop early."""
