"""The command line: click commands, and one module with the work of each command."""
