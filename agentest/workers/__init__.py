"""Run one test run across several worker processes."""
