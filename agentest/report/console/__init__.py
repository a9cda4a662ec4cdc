"""The console reporter: live progress on a terminal, plain lines anywhere else."""
