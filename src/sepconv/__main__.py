"""`python -m sepconv`: the same as the `sepconv` command."""

from sepconv.cli import main

if __name__ == "__main__":
    main()
