"""`python -m meshwright` is the same program as `meshwright`."""

from meshwright.cli import main

if __name__ == "__main__":
    main()
