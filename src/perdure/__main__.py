"""`python -m perdure` is the command `perdure`, in exactly this interpreter."""

from perdure.cli.main import main

if __name__ == "__main__":
    main()
