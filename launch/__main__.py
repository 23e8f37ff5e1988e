"""`python -m launch`, the same as the command `lookahead`."""

from launch.cli.main import program

if __name__ == "__main__":
    program()
