"""`python -m agentest`."""

from agentest.cli.main import main

if __name__ == "__main__":
    main()
