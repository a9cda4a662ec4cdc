"""`python -m agentest`."""

from agentest.cli import main

if __name__ == "__main__":
    main()
