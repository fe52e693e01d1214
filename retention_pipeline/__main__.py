"""The command line's entry: `retention`, and `python -m retention_pipeline`."""

from retention_pipeline.cli.main import cli


def main() -> None:
    """Run one call and leave with its exit code."""
    cli(prog_name="retention")


if __name__ == "__main__":
    main()
